"""Record layouts: the one definition of every fixed-width record, its size asserted beside it.

Everything is little-endian, so that numpy maps it in place. `FORMAT.md` says the same for readers in other languages.
This and `transitions` are the only modules of `store` that `checker` may import: types, no disk and no clock.

state word, 32 bits (last field of a row; bit 0 is the least significant)
    bits  0-2   state            State, see below
    bits  3-10  check_count      hand-overs of a check request, saturates at 255
    bits 11-28  immunity_s       CHECK_IMMUNITY_TIME_IN_SECONDS as parsed, 0 = not given
    bits 29-30  ask_round        round (mod 4) in which a request or proposal was last emitted or handed over
    bit  31     outstanding      a request or proposal is under way since ask_round
  of a MEMBER: bits 3-31 hold how far before it its head lies (half_offset less the head's), nothing else

topic position, 63 bits: where a released message lies
    bits  0-41  queue_offset     entry number in the topic's queue
    bits 42-47  queue_id         at most 64 queues a topic
    bits 48-62  topic_no         number in the dictionary, at most 32,767
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt


class State(IntEnum):
    """What a row holds. Exits: NONE → PREPARED, MEMBER or QUARANTINED · PREPARED → COMMITTED, ROLLED_BACK, DISCARDED_*,
    QUARANTINED (the op that ended it together with others is corrupt) · DISCARDED_* → PREPARED (resume) · COMMITTED,
    ROLLED_BACK, QUARANTINED and MEMBER have none: a member follows its head."""

    NONE = 0
    PREPARED = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    DISCARDED_MAX = 4
    DISCARDED_EXPIRED = 5
    QUARANTINED = 6
    MEMBER = 7


class OpKind(IntEnum):
    """What an op record says about its half. The first four ends are terminal; RESUME undoes a discard."""

    COMMIT = 1
    ROLLBACK = 2
    DISCARD_MAX = 3
    DISCARD_EXPIRED = 4
    UNKNOWN = 5
    ASKED = 6
    RESUME = 7
    MESSAGE = 8  # an ordinary message: released without a half


class Via(IntEnum):
    """Who said it."""

    PRODUCER = 0
    CHECK = 1
    OPERATOR = 2
    CHECKER = 3


#: State that a terminal op leads to.
STATE_OF_OP: Final[dict[OpKind, State]] = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
    OpKind.DISCARD_EXPIRED: State.DISCARDED_EXPIRED,
}

# --- state table row, 24 bytes -------------------------------------------------------------------------------------
ROW: Final = np.dtype(
    [
        ("commit_log_offset", "<i8"),
        ("size_bytes", "<i4"),
        ("stored_at_s", "<u4"),
        ("group_no", "<i4"),
        ("word", "<u4"),
    ]
)
assert ROW.itemsize == 24

# --- queue entry, 20 bytes -----------------------------------------------------------------------------------------
ENTRY: Final = np.dtype([("commit_log_offset", "<i8"), ("size_bytes", "<i4"), ("tags_code", "<i8")])
assert ENTRY.itemsize == 20

# --- records as they travel from the logs to the settlement ---------------------------------------------------------
#: One half. `corrupt` is 1 when its frame failed its CRC: then only half_offset, commit_log_offset and size are true.
#: `follows` is 0, or of a member how far before it its head lies.
HALF: Final = np.dtype(
    [
        ("half_offset", "<i8"),
        ("commit_log_offset", "<i8"),
        ("size_bytes", "<i4"),
        ("stored_at_s", "<u4"),
        ("group_no", "<i4"),
        ("immunity_s", "<u4"),
        ("corrupt", "<u4"),
        ("follows", "<u4"),
    ]
)
assert HALF.itemsize == 40

#: One op. An ASKED frame of n halves becomes n of these, and a frame with items one for each item. `group_no` is -1 where
#: the op does not state one. `position` is a packed topic position for COMMIT and MESSAGE, otherwise -1. `follows` as of a
#: half: not 0 says that the op ends this member with its head. `together` (`store.transitions.Together`) says which ops are
#: one decision.
#: `corrupt` as above: only op_offset is true, and where the frame has several entries half_offset and `together`.
OP: Final = np.dtype(
    [
        ("op_offset", "<i8"),
        ("half_offset", "<i8"),
        ("position", "<i8"),
        ("stored_at_ms", "<i8"),
        ("group_no", "<i4"),
        ("size_bytes", "<i4"),
        ("kind", "u1"),
        ("via", "u1"),
        ("corrupt", "u1"),
        ("together", "u1"),
        ("follows", "<u4"),
    ]
)
assert OP.itemsize == 48

# --- state word ------------------------------------------------------------------------------------------------------
STATE_MASK: Final = 0b111
CHECK_COUNT_SHIFT: Final = 3
CHECK_COUNT_MAX: Final = 255
IMMUNITY_SHIFT: Final = 11
IMMUNITY_MAX_S: Final = (1 << 18) - 1
ASK_ROUND_SHIFT: Final = 29
ASK_ROUND_MASK: Final = 0b11
OUTSTANDING_BIT: Final = 1 << 31


def pack_word(state: int, check_count: int = 0, immunity_s: int = 0, ask_round: int = 0, outstanding: bool = False) -> int:
    """Encode one state word; counts and immunity saturate, the round is taken mod 4."""
    return (
        int(state)
        | min(check_count, CHECK_COUNT_MAX) << CHECK_COUNT_SHIFT
        | min(max(immunity_s, 0), IMMUNITY_MAX_S) << IMMUNITY_SHIFT
        | (ask_round & ASK_ROUND_MASK) << ASK_ROUND_SHIFT
        | (OUTSTANDING_BIT if outstanding else 0)
    )


def pack_words(state: Any, check_count: Any, immunity_s: Any, ask_round: Any, outstanding: Any) -> npt.NDArray[np.uint32]:
    """Encode many state words at once; the vectorised twin of `pack_word` (arrays or scalars, broadcast)."""
    count = np.minimum(np.asarray(check_count, np.uint32), np.uint32(CHECK_COUNT_MAX))
    immunity = np.minimum(np.asarray(immunity_s, np.uint32), np.uint32(IMMUNITY_MAX_S))
    rounds = np.asarray(ask_round, np.int64).astype(np.uint32) & np.uint32(ASK_ROUND_MASK)
    word = (
        np.asarray(state, np.uint32)
        | (count << np.uint32(CHECK_COUNT_SHIFT))
        | (immunity << np.uint32(IMMUNITY_SHIFT))
        | (rounds << np.uint32(ASK_ROUND_SHIFT))
        | (np.asarray(outstanding, np.uint32) << np.uint32(31))
    )
    return np.asarray(word, np.uint32)


MEMBER_SHIFT: Final = 3
#: A member lies at most so far behind its head.
FOLLOWS_MAX: Final = (1 << 29) - 1


def member_words(follows: Any) -> npt.NDArray[np.uint32]:
    """Words of members whose heads lie so far before them."""
    return (np.asarray(follows, np.uint32) << np.uint32(MEMBER_SHIFT)) | np.uint32(State.MEMBER)


# Each reads one field out of a word or out of an array of words.
def state_of(word: Any) -> Any:
    return word & STATE_MASK


def follows_of(word: Any) -> Any:
    """Of the word of a MEMBER: how far before it its head lies."""
    return word >> MEMBER_SHIFT


def check_count_of(word: Any) -> Any:
    return (word >> CHECK_COUNT_SHIFT) & CHECK_COUNT_MAX


def immunity_of(word: Any) -> Any:
    return (word >> IMMUNITY_SHIFT) & IMMUNITY_MAX_S


def ask_round_of(word: Any) -> Any:
    return (word >> ASK_ROUND_SHIFT) & ASK_ROUND_MASK


def outstanding_of(word: Any) -> Any:
    return word >> 31


#: What Long.parseLong takes of ASCII; Python's int() would also take " 7", "1_0" and the digits of other scripts.
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")


def parse_immunity_s(text: str | None) -> int:
    """CHECK_IMMUNITY_TIME_IN_SECONDS as a row keeps it: 0 = not given, at most IMMUNITY_MAX_S.

    Absent, empty, negative or anything but ASCII digits with an optional sign counts as not given. A number too large
    for the row is capped, where Long.parseLong would fail beyond 63 bits: who writes it wants the longest grace.
    """
    if text is None or _WHOLE_NUMBER.fullmatch(text) is None or text[0] == "-":
        return 0
    digits = text.lstrip("+").lstrip("0")
    if len(digits) > len(str(IMMUNITY_MAX_S)):  # also keeps int() from refusing thousands of digits
        return IMMUNITY_MAX_S
    return min(int(digits or "0"), IMMUNITY_MAX_S)


# --- topic position --------------------------------------------------------------------------------------------------
QUEUE_OFFSET_BITS: Final = 42
QUEUE_ID_BITS: Final = 6
QUEUE_OFFSET_MASK: Final = (1 << QUEUE_OFFSET_BITS) - 1
QUEUES_PER_TOPIC_MAX: Final = 1 << QUEUE_ID_BITS
TOPIC_NO_MAX: Final = (1 << 15) - 1
NO_POSITION: Final = -1


def pack_position(topic_no: int, queue_id: int, queue_offset: int) -> int:
    packed: int = queue_key(topic_no, queue_id) << QUEUE_OFFSET_BITS | queue_offset
    return packed


def queue_key(topic_no: Any, queue_id: Any) -> Any:
    return topic_no << QUEUE_ID_BITS | queue_id


def queue_key_of(position: Any) -> Any:
    """The queue of a position."""
    return position >> QUEUE_OFFSET_BITS


def queue_offset_of(position: Any) -> Any:
    return position & QUEUE_OFFSET_MASK


def topic_of_key(queue_key: int) -> tuple[int, int]:
    """(topic_no, queue_id) of a queue key."""
    return queue_key >> QUEUE_ID_BITS, queue_key & (QUEUES_PER_TOPIC_MAX - 1)
