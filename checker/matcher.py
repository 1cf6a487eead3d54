"""Matcher: what each op does to its half, by the table of `store.transitions`. First terminal op in log order wins.

Before the table: a corrupt op is ignored (only its own offset is true), an ordinary MESSAGE and an illegal kind concern
no half, a half that is not there is UNKNOWN_HALF, and an op that states another group than the row's is WRONG_GROUP.
(Not on a QUARANTINED row: its frame is unreadable, so its group is not known, and the hole must still be left.)

The ops of one half must be taken one after another, those of different halves need not. So ops are handled in waves,
the first op of every half, then the second, each wave as one array operation; few halves have many ops in one batch,
and what is left after `WAVES_MAX` is handled singly, so that one half with a flood of ops does not stop the rest.

Ops that end halves jointly have their effect on all of them or on none, so every op about one of these halves is handled singly,
too. An op about a member follows the op about its head, which stands before it in the same frame: it is decided last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from store.arrays import Array, Ints, Words
from store.records import (
    ASK_ROUND_MASK,
    ASK_ROUND_SHIFT,
    CHECK_COUNT_MAX,
    CHECK_COUNT_SHIFT,
    IMMUNITY_MAX_S,
    IMMUNITY_SHIFT,
    OUTSTANDING_BIT,
    STATE_MASK,
    STATE_OF_OP,
    OpKind,
    State,
    check_count_of,
    follows_of,
    state_of,
)
from store.transitions import EFFECTS, Effect, Together

#: Waves taken as array operations before the rest is handled op by op.
WAVES_MAX = 32


@dataclass(frozen=True, slots=True)
class Matched:
    """New words of the halves, and the effect of every op. `ops[matched.where(Effect.RELEASE)]` are the ops that
    released, in log order, with their half_offset, position and via; likewise for every other effect."""

    words: Words  # for each of half_offsets, final
    stored_at_s: Ints  # for each of half_offsets: the new stored_at of a resumed or recounted row, -1 = unchanged
    effect: npt.NDArray[np.uint8]  # for each op

    def where(self, *effects: Effect) -> Ints:
        """Op indexes with one of these effects, in log order."""
        return np.flatnonzero(np.isin(self.effect, np.array(effects, np.uint8)))

    def counts(self) -> dict[Effect, int]:
        """How many ops had each effect."""
        counted = np.bincount(self.effect, minlength=len(Effect))
        return {effect: int(counted[effect]) for effect in Effect}


def mentioned_halves(ops: Array) -> Ints:
    """Sorted distinct half offsets that these ops are about: the rows to read before `match`."""
    halves: Ints = np.sort(ops["half_offset"][~_decided_alone(ops)[0] | _is_lost_together(ops)])
    first = np.ones(len(halves), np.bool_)
    np.not_equal(halves[1:], halves[:-1], out=first[1:])  # np.unique hashes since numpy 2.3: several times slower
    return halves[first]


def match(ops: Array, half_offsets: Ints, words: Array, groups: Array, round_no: int) -> Matched:
    """Apply `ops` (dtype records.OP, in log order) to the halves at `half_offsets` (sorted, distinct).

    `words` and `groups` are their current state words and group numbers; none is changed in place. An op about a half
    that is not among them counts as UNKNOWN_HALF.
    """
    alone, effect = _decided_alone(ops)
    slot = _slots(ops["half_offset"], half_offsets)
    effect[~alone & (slot < 0)] = Effect.UNKNOWN_HALF
    own, jointly = ~alone & (slot >= 0), np.empty(0, np.int64)
    new_words = np.array(words, np.uint32)
    if (members := ops["follows"] != 0).any():
        own &= ~members
    if (together := ops["together"] != 0).any():
        touched = np.isin(slot, slot[together & (slot >= 0)])
        jointly = np.flatnonzero((together & ~members) | (own & touched))
        own &= ~touched
    about = np.flatnonzero(own)
    waves, rest = _waves(slot[about])
    for wave in waves:
        index = about[wave]
        at = slot[index]
        done = _effects(new_words[at], ops["kind"][index], groups[at], ops["group_no"][index])
        new_words[at] = _next_words(new_words[at], done, round_no)
        effect[index] = done
    singly = _OneByOne(ops, slot, groups, round_no=round_no, words=new_words, effect=effect)
    singly.take(about[rest])
    if len(jointly):
        singly.take_jointly(jointly)
    if members.any():
        _follow(ops, slot, np.asarray(words, np.uint32), effect)
    stored_at_s = np.full(len(half_offsets), -1, np.int64)
    reset = np.flatnonzero((effect == int(Effect.RESUME)) | (effect == int(Effect.RECOUNT)))
    stored_at_s[slot[reset]] = ops["stored_at_ms"][reset] // 1000  # in log order: the last of a half stays
    return Matched(new_words, stored_at_s, effect)


def _decided_alone(ops: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Ops whose effect needs no row, and an effect array in which theirs is written."""
    effect = np.full(len(ops), int(Effect.ILLEGAL), np.uint8)
    effect[ops["kind"] == int(OpKind.MESSAGE)] = Effect.MESSAGE
    corrupt = ops["corrupt"] != 0
    effect[corrupt] = Effect.CORRUPT
    about = (ops["kind"] >= int(OpKind.COMMIT)) & (ops["kind"] <= int(OpKind.RESUME)) & ~corrupt
    return ~about, effect


def _slots(wanted: Array, half_offsets: Ints) -> Ints:
    """Place of each wanted offset in half_offsets, -1 = not there."""
    if not len(half_offsets):
        return np.full(len(wanted), -1, np.int64)
    slot = np.minimum(np.searchsorted(half_offsets, wanted), len(half_offsets) - 1)
    return np.where(half_offsets[slot] == wanted, slot, -1)


def _waves(slot: Ints) -> tuple[list[Ints], Ints]:
    """Positions of the first op of every half, of the second, and so on up to WAVES_MAX waves; and all the rest."""
    if not len(slot):
        return [], slot
    ops_of_half = np.bincount(slot)
    if ops_of_half.max() == 1:  # the usual batch: nothing to put in order
        return [np.arange(len(slot))], slot[:0]
    order = np.argsort(slot, kind="stable")
    first = np.cumsum(ops_of_half) - ops_of_half
    rank = np.arange(len(slot)) - first[slot[order]]
    ends = np.cumsum(np.bincount(rank))[:WAVES_MAX]
    pieces = np.split(order[np.argsort(rank, kind="stable")], ends)
    return pieces[:-1], pieces[-1]


# --- the table of transitions, as arrays --------------------------------------------------------------------
_KINDS: Final = 8  # COMMIT to RESUME fit below this


def _effect_table() -> npt.NDArray[np.uint8]:
    """Effect of a kind on a state, at [state * _KINDS + kind]. NONE and the unused code stand for no row."""
    table = np.full((STATE_MASK + 1, _KINDS), int(Effect.UNKNOWN_HALF), np.uint8)
    for (kind, state), effect in EFFECTS.items():
        table[state, kind] = effect
    return table.reshape(-1)


def _word_tables() -> tuple[Words, Words]:
    """For each effect the bits of a word that it keeps and those that it sets (for ASKED: at each call)."""
    keep = np.full(len(Effect), 0xFFFF_FFFF, np.uint32)
    put = np.zeros(len(Effect), np.uint32)
    for kind, state in STATE_OF_OP.items():
        effect = EFFECTS[kind, State.PREPARED]
        keep[effect] ^= np.uint32(STATE_MASK | OUTSTANDING_BIT)  # count and immunity stay: history shows them
        put[effect] = state
    for effect in (Effect.RESUME, Effect.RECOUNT):
        keep[effect] = IMMUNITY_MAX_S << IMMUNITY_SHIFT  # otherwise like a new half
        put[effect] = State.PREPARED
    keep[Effect.ASKED] ^= np.uint32(ASK_ROUND_MASK << ASK_ROUND_SHIFT)
    return keep, put


_EFFECT: Final = _effect_table()
_KEEP, _PUT = _word_tables()


def _effects(words: Words, kinds: Array, row_groups: Array, op_groups: Array) -> npt.NDArray[np.uint8]:
    """Effect of one op on each of these rows."""
    states = words & np.uint32(STATE_MASK)
    effect: npt.NDArray[np.uint8] = _EFFECT[states * np.uint32(_KINDS) + kinds]
    wrong = (op_groups >= 0) & (op_groups != row_groups)
    wrong &= (effect != int(Effect.UNKNOWN_HALF)) & (states != int(State.QUARANTINED))
    effect[wrong] = Effect.WRONG_GROUP
    return effect


def _next_words(words: Words, effect: npt.NDArray[np.uint8], round_no: int) -> Words:
    """Words after these effects.

    An answer before the first counted hand-over (ASKED ops are batched and may come behind it) leaves the row
    outstanding: nothing else in the word would remember that it was asked in this round, and it would be asked again.
    """
    put = _PUT.copy()
    put[Effect.ASKED] = (round_no & ASK_ROUND_MASK) << ASK_ROUND_SHIFT | OUTSTANDING_BIT
    count = check_count_of(words)
    new = (words & _KEEP[effect]) | put[effect]
    counted = (effect == int(Effect.ASKED)) & (count < CHECK_COUNT_MAX)
    new[counted] += np.uint32(1 << CHECK_COUNT_SHIFT)
    answered = (effect == int(Effect.ANSWERED)) & (count > 0)
    new[answered] &= np.uint32(OUTSTANDING_BIT - 1)
    return new


class _OneByOne:
    """Ops taken singly and on plain ints; writes into `words` and `effect`."""

    def __init__(
        self, ops: Array, slot: Ints, groups: Array, *, round_no: int, words: Words, effect: npt.NDArray[np.uint8]
    ) -> None:  # fmt: skip
        self._ops, self._slot, self._groups, self._words, self._effect = ops, slot, groups, words, effect
        self._effect_of, self._keep, self._put = _EFFECT.tolist(), _KEEP.tolist(), _PUT.tolist()
        self._put[Effect.ASKED] = (round_no & ASK_ROUND_MASK) << ASK_ROUND_SHIFT | OUTSTANDING_BIT

    def take(self, indexes: Ints) -> None:
        """Each for itself."""
        few = self._ops[["kind", "group_no"]][indexes].tolist()
        for index, at, (kind, op_group) in zip(indexes.tolist(), self._slot[indexes].tolist(), few, strict=True):
            self._apply(index, at, self._judge(at, kind, op_group))

    def take_jointly(self, indexes: Ints) -> None:
        """In log order; those that belong together as one."""
        few = self._ops[["kind", "group_no", "together", "corrupt"]][indexes].tolist()
        frame: list[tuple[int, int, int, int]] = []
        for number, (index, (kind, op_group, together, corrupt)) in enumerate(zip(indexes.tolist(), few, strict=True)):
            at = int(self._slot[index])
            if not together:
                self._apply(index, at, self._judge(at, kind, op_group))
                continue
            frame.append((index, at, kind, op_group))
            if number + 1 == len(few) or few[number + 1][2] != Together.OTHER:
                (self._take_lost if corrupt else self._take_frame)(frame)
                frame = []

    def _take_frame(self, frame: list[tuple[int, int, int, int]]) -> None:
        """Heads that end jointly. A quarantined one cannot end, and is in nobody's way."""
        done = [self._judge(at, kind, op_group) if at >= 0 else Effect.UNKNOWN_HALF for _, at, kind, op_group in frame]
        wanted = _JOINTLY.get(frame[0][2], ())
        for number, (index, at, _, _) in enumerate(frame):
            if all(effect in wanted for effect in done):
                self._apply(index, at, done[number])
            else:
                self._effect[index] = Effect.VOID if number else Effect.CONFLICT

    def _take_lost(self, frame: list[tuple[int, int, int, int]]) -> None:
        """A corrupt frame that spoke of several halves. Were more than one of them a head, nobody may end one of these without
        the others any more. A head with its members is asked about again."""
        states = [int(self._words[at]) & STATE_MASK if at >= 0 else int(State.NONE) for _, at, _, _ in frame]
        heads = sum(state not in (State.NONE, State.MEMBER) for state in states)
        for number, (index, at, _, _) in enumerate(frame):
            self._effect[index] = Effect.VOID if number else Effect.CORRUPT
            if heads > 1 and states[number] == State.PREPARED:
                self._words[at] = int(self._words[at]) & ~(STATE_MASK | OUTSTANDING_BIT) | State.QUARANTINED
                self._effect[index] = Effect.SET_ASIDE

    def _judge(self, at: int, kind: int, op_group: int) -> int:
        state = int(self._words[at]) & STATE_MASK
        done: int = self._effect_of[state * _KINDS + kind]
        if 0 <= op_group != self._groups[at] and done != Effect.UNKNOWN_HALF and state != State.QUARANTINED:
            return Effect.WRONG_GROUP
        return done

    def _apply(self, index: int, at: int, done: int) -> None:
        if done != Effect.UNKNOWN_HALF:
            word = int(self._words[at])
            count = check_count_of(word)
            word = word & self._keep[done] | self._put[done]
            if done == Effect.ASKED and count < CHECK_COUNT_MAX:
                word += 1 << CHECK_COUNT_SHIFT
            if done == Effect.ANSWERED and count > 0:
                word &= OUTSTANDING_BIT - 1
            self._words[at] = word
        self._effect[index] = done


#: What each head of a joint end must come to.
_JOINTLY: Final = {
    int(OpKind.COMMIT): (Effect.RELEASE, Effect.HOLE),
    int(OpKind.ROLLBACK): (Effect.ROLLBACK, Effect.LATE),
}


def _is_lost_together(ops: Array) -> npt.NDArray[np.bool_]:
    """Ops of corrupt frames of which is known of which halves they spoke."""
    return np.asarray((ops["corrupt"] != 0) & (ops["together"] != 0) & (ops["half_offset"] >= 0))


def _follow(ops: Array, slot: Ints, words: Words, effect: npt.NDArray[np.uint8]) -> None:
    """Effects on members, by those on their heads. `words` are those before the batch: no op changes a member's, but a row that
    an op takes for a member may have been set aside before that op."""
    last_own = np.maximum.accumulate(np.where(ops["follows"] == 0, np.arange(len(ops)), 0))
    index = np.flatnonzero((ops["follows"] != 0) & (ops["corrupt"] == 0))
    head = effect[last_own[index]]
    word = words[np.maximum(slot[index], 0)]
    states = np.where(slot[index] >= 0, state_of(word), int(State.NONE))
    leads_there = (states == int(State.MEMBER)) & (follows_of(word) == ops["follows"][index])
    quarantined = states == int(State.QUARANTINED)
    if len(aside := np.flatnonzero(effect == int(Effect.SET_ASIDE))):
        since = np.full(len(words), len(ops))
        np.minimum.at(since, slot[aside], aside)
        quarantined |= (slot[index] >= 0) & (since[slot[index]] < index)
    spoilt = quarantined | (leads_there & (head == int(Effect.HOLE)))
    done = np.full(len(index), int(Effect.VOID), np.uint8)
    done[leads_there & (head == int(Effect.RELEASE))] = Effect.FOLLOWED
    done[spoilt & np.isin(head, (int(Effect.RELEASE), int(Effect.HOLE)))] = Effect.HOLE
    effect[index] = done
