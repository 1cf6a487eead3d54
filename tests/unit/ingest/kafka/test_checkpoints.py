"""Checkpoints of the ends tables: records, and what is made of damaged, foreign and old ones. Without a broker."""

from __future__ import annotations

import pytest

from ingest.kafka.ended.beginning import Gap
from ingest.kafka.ended.checkpoints import (
    MARK,
    Snapshot,
    Unusable,
    binding_of,
    checkpoint_of,
    chunk_key,
    numbers_in,
    records_of,
)
from ingest.kafka.ended.table import CHUNK, Ends

OURS = binding_of("half id", "op id", 3)


def stored(ends: Ends, op_offset: int, *, all_of_them: bool = True, into: dict[bytes, bytes] | None = None) -> dict[bytes, bytes]:
    """What a compacted partition holds after a checkpoint."""
    records = {} if into is None else into
    snapshot = Snapshot(3, OURS, op_offset, ends.take(all_of_them=all_of_them), ends.numbers)
    for key, value in records_of(snapshot):
        if value is None:
            records.pop(key, None)
        else:
            records[key] = value
    return records


@pytest.fixture
def ends() -> Ends:
    made = Ends()
    made[5], made[CHUNK + 7], made[9 * CHUNK] = 2, 3, 5
    return made


def test_a_checkpoint_gives_the_same_ends_again(ends: Ends) -> None:
    found = checkpoint_of(stored(ends, 70), OURS, 0)
    assert found is not None
    again = Ends(found.chunks, found.through)
    assert (found.op_offset, again.numbers, again[5], again[6], again[CHUNK + 7], again[9 * CHUNK]) == (70, [0, 1, 9], 2, 0, 3, 5)
    assert not again.has(5, 69), "its chunks are at the mark: nothing behind it is in them"


def test_later_checkpoints_hold_what_changed_and_take_away_what_is_gone(ends: Ends) -> None:
    records = stored(ends, 70)
    ends[CHUNK + 8] = 2
    ends.forget(CHUNK)
    changed = ends.take(all_of_them=False)
    assert set(changed) == {0, 1}
    ends.changed_again(changed)
    stored(ends, 80, all_of_them=False, into=records)
    assert numbers_in(records) == {1, 9}
    found = checkpoint_of(records, OURS, CHUNK)
    assert found is not None
    assert (found.op_offset, found.chunks[1][8], found.through) == (80, 2, {})


def test_a_chunk_that_is_ahead_of_the_mark_passes_over_what_it_holds(ends: Ends) -> None:
    records = stored(ends, 70)
    ends[5] = 3
    ahead = stored(ends, 90)
    found = checkpoint_of({**records, chunk_key(0): ahead[chunk_key(0)]}, OURS, 0)
    assert found is not None
    again = Ends(found.chunks, found.through)
    assert (found.op_offset, again.has(5, 89), again.has(5, 90), again.has(CHUNK, 89)) == (70, True, False, False)


@pytest.mark.parametrize("key", [MARK, chunk_key(1)])
def test_every_damaged_byte_of_a_checkpoint_is_noticed(ends: Ends, key: bytes) -> None:
    records = stored(ends, 70)
    for at in range(len(records[key])):
        damaged = bytearray(records[key])
        damaged[at] ^= 0x41
        with pytest.raises(Unusable):
            checkpoint_of({**records, key: bytes(damaged)}, OURS, 0)
    for length in range(len(records[key])):
        with pytest.raises(Unusable):
            checkpoint_of({**records, key: records[key][:length]}, OURS, 0)


def test_chunks_that_are_missing_or_swapped_are_noticed_unless_their_halves_are_gone(ends: Ends) -> None:
    records = stored(ends, 70)
    missing = {key: value for key, value in records.items() if key != chunk_key(0)}
    with pytest.raises(Unusable, match="missing"):
        checkpoint_of(missing, OURS, CHUNK - 1)
    assert checkpoint_of(missing, OURS, CHUNK) is not None
    with pytest.raises(Unusable, match="CRC"):
        checkpoint_of({**records, chunk_key(0): records[chunk_key(1)]}, OURS, 0)


@pytest.mark.parametrize("other", [("half id", "made anew", 3), ("made anew", "op id", 3), ("half id", "op id", 2)])
def test_a_checkpoint_of_other_topics_is_told_from_ours(ends: Ends, other: tuple[str, str, int]) -> None:
    with pytest.raises(Unusable, match="made anew"):
        checkpoint_of(stored(ends, 70), binding_of(*other), 0)


def test_without_a_mark_there_is_none() -> None:
    assert checkpoint_of({chunk_key(0): b"left over"}, OURS, 0) is None


def test_a_gap_matters_until_its_halves_are_past_their_time() -> None:
    gap = Gap(3, 1000, until_ms=5_000)
    assert (gap.matters(4_999), gap.matters(5_000)) == (True, False)
    assert "op partition 3" in gap.text
    assert "1970-01-01 00:00:05Z" in gap.text
