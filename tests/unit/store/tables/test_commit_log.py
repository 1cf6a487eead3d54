"""The commit log: batches in one segment, PAD, scan, salvage."""

from __future__ import annotations

import numpy as np
import pytest

from store.errors import BatchTooLarge, Corrupt
from store.io import disk
from store.records import OpKind
from store.tables import frames
from store.tables.commit_log import CommitLog
from store.tables.frames import FrameKind

SEGMENT = 4096


@pytest.fixture
def log(tmp_path):
    return CommitLog(tmp_path / "commitlog", SEGMENT, writable=True)


def append(log, *bodies):
    heads = np.zeros(len(bodies), frames.HALF_HEAD)
    heads["kind"], heads["body_bytes"] = FrameKind.HALF, [len(body) for body in bodies]
    return log.append(heads, [bodies])


def bodies_of(log, start=0):
    return [[log.read(*frame).body for frame in batch.frames] for batch in log.scan(start)]


def test_frames_lie_one_after_another_and_read_back(log):
    first, second = append(log, b"a", b"bb"), append(log, b"ccc")
    assert first.offsets.tolist() == [0, 121]
    assert first.sizes.tolist() == [121, 122]
    assert second.offsets.tolist() == [243]
    assert second.end == log.end == 243 + 123
    frame = log.read(121, 122)
    assert (frame.body, frame.batch_index, frame.batch_length, frame.commit_log_offset) == (b"bb", 1, 2, 121)
    assert bodies_of(log) == [[b"a", b"bb"], [b"ccc"]]


def test_a_batch_lies_in_one_segment_and_a_pad_closes_the_one_before(log):
    append(log, bytes(2000))
    placed = append(log, b"x" * 1000, b"y" * 1000)
    assert placed.offsets.tolist() == [SEGMENT, SEGMENT + 1120]
    assert log.read(2120, SEGMENT - 2120).kind == FrameKind.PAD
    assert bodies_of(log) == [[bytes(2000)], [b"x" * 1000, b"y" * 1000]]
    assert (log.scan_stop, log.scan_reason) == (log.end, "end of the log")


@pytest.mark.parametrize("left", [0, 1, 31, 32, 33])
def test_whatever_is_left_of_a_segment_the_scan_goes_on_in_the_next(log, left):
    append(log, bytes(SEGMENT - 120 - left))
    append(log, b"next")
    assert bodies_of(log)[1] == [b"next"]
    assert log.read(SEGMENT, 124).body == b"next"


def test_a_batch_that_fills_a_segment_exactly_fits_and_one_byte_more_does_not(log):
    append(log, b"before")
    end = log.end
    with pytest.raises(BatchTooLarge, match=r"4097 bytes, a segment 4096"):
        append(log, bytes(SEGMENT - 119))
    assert log.end == end
    placed = append(log, b"z" * (SEGMENT - 120))
    assert placed.offsets.tolist() == [SEGMENT]
    assert placed.end == 2 * SEGMENT
    append(log, b"after")
    assert [batch[0] for batch in bodies_of(log)] == [b"before", b"z" * (SEGMENT - 120), b"after"]


def test_more_messages_than_a_batch_can_number_are_refused(log):
    with pytest.raises(BatchTooLarge, match="65535"):
        log.append(np.zeros(65_536, frames.OP_HEAD), ())
    assert log.end == 0


def test_a_batch_is_one_write(log):
    append(log, b"a")
    with disk.recording() as passed:
        append(log, *[b"x"] * 20)
        assert passed == {"commitlog.write": 1}
        log.flush()
        assert passed["commitlog.flush"] == 1


def test_reading_where_no_segment_is_says_so(log):
    append(log, b"a")
    with pytest.raises(Corrupt, match="no such segment"):
        log.read(10 * SEGMENT, 120)


def test_the_scan_stops_before_a_batch_that_is_not_whole(log):
    append(log, b"whole", b"too")
    end = log.end
    append(log, b"cut", b"off", b"here")
    third = end + 123 + 123
    log.file.write(third, bytes(log.end - third))
    assert bodies_of(log) == [[b"whole", b"too"]]
    assert log.scan_stop == end
    assert "batch cut off: 2 frames" in log.scan_reason


def test_the_scan_stops_at_a_frame_of_another_batch(log):
    append(log, b"aaaa")
    end = log.end
    append(log, b"bbbb", b"cccc")
    # An older single frame of the same size in the middle of a batch: valid by itself, but not what belongs there.
    heads = np.zeros(1, frames.HALF_HEAD)
    heads["kind"], heads["body_bytes"] = FrameKind.HALF, 4
    log.file.write(end + 124, frames.encode_batch(heads, [[b"dddd"]], end + 124))
    assert bodies_of(log) == [[b"aaaa"]]
    assert "where frame 1 belongs" in log.scan_reason


def test_the_scan_names_what_it_stopped_at(log):
    append(log, b"aaaa")
    end = log.end
    append(log, b"bbbb")
    log.file.write(end + 121, b"!")
    assert bodies_of(log) == [[b"aaaa"]]
    assert "CRC" in log.scan_reason
    log.file.write(end + 4, (10**6).to_bytes(4, "little"))
    assert bodies_of(log) == [[b"aaaa"]]
    assert "cannot have 1000000 bytes here" in log.scan_reason


def test_salvage_goes_round_damage_and_reports_each_range(log):
    placed = append(log, *[b"%04d" % number for number in range(10)])
    append(log, bytes(2500))
    append(log, bytes(2000))  # in the next segment
    offsets = placed.offsets.tolist()
    log.file.write(offsets[2] + 122, b"!")
    log.file.write(offsets[5], bytes(124))
    log.file.write(offsets[6] + 4, b"\xff\xff")
    damage = []
    found = [at for at, _ in log.salvage(0, log.end, lambda *what: damage.append(what))]
    assert found == [at for number, at in enumerate(offsets) if number not in (2, 5, 6)] + [offsets[9] + 124, SEGMENT]
    assert [(start, stop) for start, stop, _ in damage] == [(offsets[2], offsets[3]), (offsets[5], offsets[7])]
    assert "CRC" in damage[0][2]
    assert "zeros where a frame was acknowledged" in damage[1][2]


def test_salvage_does_not_take_a_frame_inside_a_body_for_one(log):
    """A body may hold the bytes of a frame; the CRC knows where it was written."""
    inner = append(log, b"inner")
    content = bytes(log.frame_bytes(0, int(inner.sizes[0])))
    outer = append(log, b"...." + content + b"....")
    append(log, b"last")
    log.file.write(int(outer.offsets[0]) + 4, b"\0\0")
    damage = []
    found = [log.read(at, size).body for at, size in log.salvage(0, log.end, lambda *what: damage.append(what))]
    assert found == [b"inner", b"last"]
    assert len(damage) == 1


def test_an_op_frame_and_a_half_frame_share_the_log(log):
    append(log, b"half")
    ops = [frames.Op(OpKind.COMMIT, 0, position=5)]
    log.append(frames.op_heads(ops, 0, 1), frames.op_tails(ops))
    kinds = [log.read(*frame).kind for batch in log.scan(0) for frame in batch.frames]
    assert kinds == [FrameKind.HALF, FrameKind.OP]


def test_whether_many_frames_are_whole(log):
    placed = [append(log, b"x" * 1000, b"y" * 1000) for _ in range(3)]  # each in a segment of its own
    offsets, sizes = (np.concatenate([getattr(each, name) for each in placed]).tolist() for name in ("offsets", "sizes"))
    assert log.are_whole(offsets, sizes)
    assert not log.are_whole([*offsets, 5 * SEGMENT], [*sizes, 1120])  # there is no such segment
    log.file.write(offsets[3] + 500, b"\xff")
    assert not log.are_whole(offsets, sizes)
    assert log.are_whole(offsets[:3] + offsets[4:], sizes[:3] + sizes[4:])
