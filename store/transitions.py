"""Transitions: what an op does to a half in each state. The one table; the first terminal op in log order wins.

    `EFFECTS`                   the table
    `store.tables.ends.judge`   answers the caller of an op by it, before the op is written
    `checker.matcher.match`     applies ops from the log by it

`checker.reference` and `store.inspect.verify` state the rules a second time, independently: tests compare them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from store.records import STATE_OF_OP, OpKind, State


class Effect(IntEnum):
    """What an op did. Up to HOLE, FOLLOWED and SET_ASIDE they change a row or leave an entry, the others change nothing
    and are counted."""

    RELEASE = 0  # PREPARED → COMMITTED; the message takes its place `position`
    ROLLBACK = 1  # PREPARED → ROLLED_BACK
    DISCARD_MAX = 2  # PREPARED → DISCARDED_MAX
    DISCARD_EXPIRED = 3  # PREPARED → DISCARDED_EXPIRED
    RESUME = 4  # DISCARDED_* → PREPARED, a new life: count 0, stored_at = the op's
    RECOUNT = 5  # resume of a PREPARED row: the same new life, but pending stays what it was
    ASKED = 6  # one more hand-over counted
    ANSWERED = 7  # UNKNOWN: the request is no longer outstanding
    HOLE = 8  # commit of a QUARANTINED half, or of a member of one: an empty entry keeps its `position`
    ALREADY = 9  # the same end again
    CONFLICT = 10  # another end, or a resume, after an end
    LATE = 11  # ASKED or UNKNOWN after the end; rollback of a QUARANTINED half, which is never released anyway
    LATE_DISCARD = 12  # a discard after the end; an edge with its `ends` intact never writes one
    UNKNOWN_HALF = 13  # no such row
    WRONG_GROUP = 14  # of another producer group: still pending
    CORRUPT = 15  # the op's frame failed its CRC
    ILLEGAL = 16  # a kind this version does not know
    MESSAGE = 17  # an ordinary message: not about a half
    FOLLOWED = 18  # a member whose head is released by the same op: it takes its place `position`
    VOID = 19  # one of several that an op names, and the op has no effect on any
    SET_ASIDE = 20  # PREPARED → QUARANTINED: the op that ended it together with others is corrupt


class Together(IntEnum):
    """Ops that end halves jointly, all or none, follow one another: a first one, then the others. So do the ops of a
    corrupt frame that has several: what it said of each half is lost, but not of which halves it spoke."""

    ALONE = 0
    FIRST = 1
    OTHER = 2


_E = Effect
#: Ops about a half, in the order of the table's columns.
HALF_OPS: Final = (
    OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED, OpKind.RESUME, OpKind.ASKED, OpKind.UNKNOWN
)  # fmt: skip
_ROWS: Final = {
    # state ↓  op →           COMMIT       ROLLBACK     DISCARD_MAX      DISCARD_EXPIRED     RESUME       ASKED     UNKNOWN
    State.PREPARED:          (_E.RELEASE,  _E.ROLLBACK, _E.DISCARD_MAX,  _E.DISCARD_EXPIRED, _E.RECOUNT,  _E.ASKED, _E.ANSWERED),
    State.COMMITTED:         (_E.ALREADY,  _E.CONFLICT, _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.CONFLICT, _E.LATE,  _E.LATE),
    State.ROLLED_BACK:       (_E.CONFLICT, _E.ALREADY,  _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.CONFLICT, _E.LATE,  _E.LATE),
    State.DISCARDED_MAX:     (_E.CONFLICT, _E.CONFLICT, _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.RESUME,   _E.LATE,  _E.LATE),
    State.DISCARDED_EXPIRED: (_E.CONFLICT, _E.CONFLICT, _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.RESUME,   _E.LATE,  _E.LATE),
    State.QUARANTINED:       (_E.HOLE,     _E.LATE,     _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.CONFLICT, _E.LATE,  _E.LATE),
    # Of an op that names it as a half of its own, which no edge writes.
    State.MEMBER:            (_E.CONFLICT, _E.CONFLICT, _E.LATE_DISCARD, _E.LATE_DISCARD,    _E.CONFLICT, _E.LATE,  _E.LATE),
}  # fmt: skip
#: The effect of an op on a half in a state.
EFFECTS: Final[dict[tuple[OpKind, State], Effect]] = {
    (kind, state): effect for state, row in _ROWS.items() for kind, effect in zip(HALF_OPS, row, strict=True)
}

#: A discard, and why a half is discarded, as messages, metrics and queues name it.
REASON_OF_DISCARD: Final = {OpKind.DISCARD_MAX: "check_max", OpKind.DISCARD_EXPIRED: "expired"}
#: States of a discarded half, and the op that led there.
DISCARD_OF_STATE: Final = {STATE_OF_OP[kind]: kind for kind in REASON_OF_DISCARD}
