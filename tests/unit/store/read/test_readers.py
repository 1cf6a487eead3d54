"""Readers: what another process sees while the writers write."""

from __future__ import annotations

import numpy as np
import pytest

from store.edge.store import EdgeStore
from store.errors import NotAStore
from store.messages import Message
from store.properties import tags_code
from store.read.readers import LogReader, TopicReader, open_readers
from store.records import OpKind, State, Via, pack_position
from streaming.settlement.settle import read_feed
from tests.support.service import SMALLEST, contents


def damage(service, commit_log_offset, at=60):
    service.edge.log.file.write(commit_log_offset + at, b"\xee")


def test_halves_come_as_records_with_what_the_rows_need(service):
    service.send_one(b"abc", immunity_s=9)
    service.sleep(1.999)
    service.send_one(b"d", group="others")
    found = service.job.log.halves(0, 2)
    assert found["half_offset"].tolist() == [0, 1]
    assert found["stored_at_s"].tolist() == [1_800_000_000, 1_800_000_001]
    assert (found["group_no"].tolist(), found["immunity_s"].tolist(), found["corrupt"].tolist()) == ([0, 1], [9, 0], [0, 0])
    assert found["size_bytes"].tolist() == service.edge.half_queue.read(0, 2)["size_bytes"].tolist()


def test_a_corrupt_half_is_marked_and_only_its_place_is_told(service):
    service.send(b"a", b"b", b"c", immunity_s=5)
    damage(service, service.edge.half_queue.entry(1)[0])
    found = service.job.log.halves(0, 3)
    assert found["corrupt"].tolist() == [0, 1, 0]
    assert found[1].tolist()[0:3] == (1, *service.edge.half_queue.entry(1)[:2])
    assert (found["stored_at_s"][1], found["group_no"][1], found["immunity_s"][1]) == (0, -1, 0)


@pytest.mark.parametrize("field", ["commit_log_offset", "size_bytes"])
@pytest.mark.parametrize("value", [-1, 0, 7, 65_530, 1 << 30])
def test_an_entry_that_points_nowhere_is_marked_and_not_followed(service, field, value):
    service.send(b"a", b"b")
    entry = service.edge.half_queue.read(1, 2).copy()
    entry[field] = value
    service.edge.half_queue.put(1, entry)
    assert service.job.log.halves(0, 2)["corrupt"].tolist() == [0, 1]


def test_an_entry_that_points_at_another_half_is_marked(service):
    service.send(b"a", b"b")
    service.edge.half_queue.put(1, service.edge.half_queue.read(0, 1).copy())
    assert service.job.log.halves(0, 2)["corrupt"].tolist() == [0, 1]


def test_ops_come_as_records(service):
    service.send(b"a", b"b")
    service.sleep(5)
    answer = service.end(1, OpKind.COMMIT, via=Via.OPERATOR, group=None)
    service.end(0, OpKind.UNKNOWN, via=Via.CHECK)
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"m", queue_id=2)], service.now_ms).ticket)
    ops = service.job.log.ops(0, 3)
    assert ops["op_offset"].tolist() == [0, 1, 2]
    assert ops["kind"].tolist() == [OpKind.COMMIT, OpKind.UNKNOWN, OpKind.MESSAGE]
    assert ops["half_offset"].tolist() == [1, 0, -1]
    assert ops["position"].tolist() == [answer.position, -1, pack_position(0, 2, 0)]
    assert ops["via"].tolist() == [Via.OPERATOR, Via.CHECK, 0]
    assert ops["stored_at_ms"].tolist() == [service.now_ms] * 3
    assert (ops["group_no"].tolist(), ops["corrupt"].tolist()) == ([0, 0, 0], [0, 0, 0])


def test_an_asked_frame_becomes_one_record_for_each_half_in_its_place(service):
    halves = service.send(*[b"x"] * 6)
    service.commit(halves[0])
    service.edge.append_asked(halves[1:4], "m", service.now_ms)
    service.roll_back(halves[5])
    service.edge.wait(service.edge.append_asked([halves[4]], "m", service.now_ms))
    ops = service.job.log.ops(0, service.edge.op_end)
    assert ops["op_offset"].tolist() == [0, 1, 1, 1, 2, 3]
    assert ops["half_offset"].tolist() == [0, 1, 2, 3, 5, 4]
    assert ops["kind"].tolist() == [OpKind.COMMIT, *[OpKind.ASKED] * 3, OpKind.ROLLBACK, OpKind.ASKED]
    assert ops["group_no"].tolist() == [0, -1, -1, -1, 0, -1]


def test_a_corrupt_op_is_marked_and_says_nothing(service):
    service.send(b"a", b"b")
    service.commit(0, 1)
    damage(service, service.edge.op_queue.entry(0)[0], 45)
    ops = service.job.log.ops(0, 2)
    assert (ops["corrupt"].tolist(), ops["half_offset"].tolist()) == ([1, 0], [-1, 1])
    assert ops["position"][0] == -1


def test_no_records_of_an_empty_range(service):
    assert (len(service.job.log.halves(0, 0)), len(service.job.log.ops(0, 0))) == (0, 0)


def test_tags_follow_a_release_into_a_segment_made_after_the_job_opened(service):
    """The feed may come from another process: the job's own reader must find new segments by itself."""
    source = LogReader(service.job.directory)
    halves = [half for _ in range(4) for half in service.send(*[b"z" * 500] * 60, properties={"TAGS": "a"})]
    service.commit(*halves)
    while not service.is_caught_up():
        service.settler.settle(read_feed(source, service.job.marker.half_cursor, service.job.marker.op_cursor), service.now_ms)
    topics = TopicReader(service.job.directory)
    codes = [code for queue_id in range(4) for code in topics.topic_entries(0, queue_id, 0, 1000)[1]["tags_code"].tolist()]
    assert len(service.edge.log.file.starts()) > 1
    assert codes == [tags_code("a")] * len(halves)


def test_history_has_every_readable_op_of_a_half_in_order(service):
    half, other = service.send(b"a", b"b")
    service.end(half, OpKind.UNKNOWN, via=Via.CHECK, remark="hm")
    service.edge.append_asked([other, half], "m1", service.now_ms)
    service.commit(other)
    service.edge.append_asked([half], "m2", service.now_ms)
    service.roll_back(half)
    kinds = [op.fields["op_kind"] for op in service.job.log.history(half)]
    assert kinds == [OpKind.UNKNOWN, OpKind.ASKED, OpKind.ASKED, OpKind.ROLLBACK]
    damage(service, service.edge.op_queue.entry(0)[0], 45)
    assert [op.fields["op_kind"] for op in service.job.log.history(half)] == kinds[1:]
    assert service.job.log.history(99) == []


def test_a_topic_is_read_from_any_place_up_to_its_end(service):
    halves = service.send(*[b"%d" % number for number in range(10)], queue_id=1)
    service.commit(*halves)
    service.settle()
    topics = TopicReader(service.job.directory)
    assert [topics.topic_entries(0, 1, first, count)[0] for first, count in ((0, 3), (4, 100), (50, 5))] == [0, 4, 50]
    assert [len(topics.topic_entries(0, 1, first, count)[1]) for first, count in ((0, 3), (4, 100), (50, 5))] == [3, 6, 0]
    assert len(topics.topic_entries(0, 0, 0, 10)[1]) == 0
    assert len(topics.topic_entries(7, 0, 0, 10)[1]) == 0


def test_a_topic_reader_finds_new_queues_and_follows_a_rebuild(service):
    half = service.send_one(b"x", queue_id=0)
    service.commit(half)
    service.settle()
    topics = TopicReader(service.job.directory)
    service.commit(service.send_one(b"y", queue_id=3))
    service.settle()
    assert topics.follow() is False
    assert topics.catalogue.queue_keys() == [0, 3]
    before = topics.topic_entries(0, 0, 0, 9)[1].tolist()
    service.job.close()
    generation = topics.generation
    service.job = type(service.job)(service.root, rebuild=True)
    assert topics.topic_entries(0, 0, 0, 9)[1].tolist() == before  # the old generation is still mapped
    assert topics.follow() is True
    assert topics.generation == generation + 1
    assert topics.topic_entries(0, 0, 0, 9)[1].tolist() == before
    assert int(topics.table.rows_of(0)[half]["word"]) & 7 == State.COMMITTED


def test_readers_of_a_store_that_no_job_has_opened(tmp_path):
    with pytest.raises(NotAStore):
        open_readers(tmp_path / "nowhere")
    EdgeStore(tmp_path / "edge only", geometry=SMALLEST).close()
    _, log, topics, dictionary = open_readers(tmp_path / "edge only")
    assert (log.ends(), topics, dictionary.topics) == ((0, 0), None, [])
    (tmp_path / "edge only" / "edge.published").unlink()
    with pytest.raises(NotAStore, match="start the edge first"):
        open_readers(tmp_path / "edge only")


def test_reading_changes_nothing(service):
    service.commit(*service.send(*[b"x"] * 5))
    service.settle()
    before = contents(service.root, ".")
    service.consume()
    service.job.log.history(0)
    log = LogReader(service.job.directory)
    read_feed(log, 0, 0)
    np.testing.assert_array_equal(log.halves(0, 5)["corrupt"], 0)
    assert contents(service.root, ".") == before
