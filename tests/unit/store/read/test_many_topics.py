"""Many topics: neither descriptors nor disk grow with how many names there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from store.errors import IllegalName
from store.inspect.verify.store import verify
from store.io import disk
from store.messages import Message
from store.records import queue_key_of, queue_offset_of
from store.tables.queue_extents import SLOTS_PER_FILE, Catalogue
from tests.support.service import Service

SETTLE = """
import json, os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from store.edge.store import EdgeStore
from store.messages import Message
from store.job.store import JobStore
from store.read.readers import TopicReader
from streaming.settlement.settle import Settler, read_feed
from checker.policy import Policy
from runtime.settings import load

root, now_ms = Path(sys.argv[1]), 1_700_000_000_000
with EdgeStore(root) as edge:
    for turn in range(3):
        ticket = edge.append_messages([Message("g", f"t{n}", b"%d" % turn, queue_id=0) for n in range(300)], now_ms).ticket
        edge.wait(ticket)
    with JobStore(root) as job:
        settler = Settler(job, Policy.from_ms(**load(None, [], {}).policy_values()))
        while job.marker.op_cursor < edge.op_end:
            settler.settle(read_feed(job.log, job.marker.half_cursor, job.marker.op_cursor), now_ms + 1)
        job.checkpoint()
        job.retain(now_ms + 2, 1000)
        topics = TopicReader(edge.directory)
        topics.follow()
        found = [len(topics.topic_entries(n, 0, 0, 10)[1]) for n in range(300)]
        print(json.dumps({"found": found, "descriptors": len(os.listdir("/proc/self/fd"))}))
"""


def test_300_topics_under_100_descriptors(tmp_path: Path) -> None:
    root = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", SETTLE, str(root)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout)
    assert said["found"] == [3] * 300
    assert said["descriptors"] <= 100
    assert verify(root).problems == []
    files = [path for path in (root / "transaction").glob("generation-*/topics/*/0/*") if path.is_file()]
    assert len(files) == 300
    assert sum(path.stat().st_blocks * 512 for path in files) <= 300 * 4096


def test_a_release_spreads_over_many_queues_in_one_batch(service: Service) -> None:
    for number in range(200):
        service.edge.add_topic(f"t{number}", 4)
    halves = [half for number in range(200) for half in service.send(b"a", b"b", b"c", topic=f"t{number}")]
    service.commit(*halves)
    service.settle()
    keys = service.job.catalogue.queue_keys()
    assert sum(service.job.catalogue.extent(key)[1] for key in keys) == len(halves)
    service.close()
    assert verify(service.root).problems == []


def test_the_names_of_a_batch_are_made_together(service: Service) -> None:
    messages = [Message(f"g{number % 10}", f"t{number}", b"x") for number in range(300)]
    with disk.recording() as passed:
        service.edge.wait(service.edge.append_messages(messages, service.now_ms).ticket)
    assert passed["dictionary.flush"] == 1


def test_a_batch_that_is_refused_makes_no_name(service: Service) -> None:
    messages = [Message("g", "fine", b"x"), Message("g", "not fine", b"x"), Message("g", "also-fine", b"x")]
    with pytest.raises(IllegalName) as caught:
        service.edge.append_messages(messages, service.now_ms)
    assert caught.value.number == 1
    assert service.edge.dictionary.topic_no("fine") is None


def test_verify_knows_who_made_names(service: Service) -> None:
    service.edge.maker_of = lambda _kind, name: "team@1"
    service.send(b"a", topic="t")
    service.settle()
    service.close()
    assert verify(service.root).problems == []


def test_a_batch_over_many_queues_puts_each_entry_where_its_op_says(service: Service) -> None:
    for _ in range(3):
        chosen = np.random.default_rng(7).integers(0, 120, 300).tolist()
        messages = [Message("g", f"t{at // 4}", b"%d" % number, queue_id=at % 4) for number, at in enumerate(chosen)]
        service.edge.wait(service.edge.append_messages(messages, service.now_ms).ticket)
        service.settle()
    job = service.job
    ops = job.log.ops(0, service.edge.op_end)
    ends: dict[int, int] = {}
    for op_offset, position in zip(ops["op_offset"].tolist(), ops["position"].tolist(), strict=True):
        key, place = queue_key_of(position), queue_offset_of(position)
        ends[key] = max(ends.get(key, 0), place + 1)
        (entry,) = job._files.topic_queue(key).read(place, place + 1).tolist()
        assert entry[:2] == job.log.op_queue.entry(op_offset)[:2]
    assert {key: (0, end) for key, end in ends.items()} == job.catalogue.extents()


def test_many_queues_at_once_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    once, one_by_one = (Catalogue(tmp_path / name, writable=True) for name in ("once", "one"))
    reader = Catalogue(tmp_path / "once")
    for _ in range(4):
        keys = rng.choice(3 * SLOTS_PER_FILE, SLOTS_PER_FILE, replace=False).tolist()
        begins, ends = np.cumsum(rng.integers(0, 99, (2, len(keys))), axis=0).tolist()
        queues = dict(zip(keys, zip(begins, ends, strict=True), strict=True))
        once.extend_many(queues)
        for key, (begin, end) in queues.items():
            one_by_one.extend(key, begin, end)
        reader.refresh()
        every = np.arange(3 * SLOTS_PER_FILE)
        plain = [one_by_one.extent(key) for key in every.tolist()]
        for catalogue in (once, reader):
            assert [catalogue.extent(key) for key in every.tolist()] == plain
            assert catalogue.begins(every).tolist() == [begin for begin, _ in plain]
            assert catalogue.extents() == {key: one_by_one.extent(key) for key in one_by_one.queue_keys()}
    assert len(once.queue_keys()) > SLOTS_PER_FILE
    for catalogue in (once, one_by_one, reader):
        catalogue.close()
