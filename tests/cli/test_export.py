"""`escrow export`: what is in the file is what the service would tell of each transaction, whatever happened to it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from checker.policy import Policy
from escrow.cli import main
from ingest.ids import Sealer, load_keys
from ingest.operating.history import Histories
from store.edge.store import EdgeStore
from store.errors import SegmentGone
from store.records import OpKind
from tests.support.service import SMALLEST, T0_MS, Service

STATE = {"PREPARED": "pending", "DISCARDED_MAX": "discarded", "DISCARDED_EXPIRED": "discarded"}
END = ("committed", "rolled_back", "discarded")


def live_through(data, seed, count=260):
    """A store with a past: every fate, over many files of every kind, the clock going on between them."""
    chance = random.Random(seed)
    service = Service(data / "store", SMALLEST, Policy(transaction_timeout_s=6, check_count_max=2, check_interval_s=30))
    service.members = {"orders": lambda half: chance.choice((OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN, None))}
    open_halves: list[tuple[int, str]] = []
    while service.edge.half_end < count:
        group = chance.choice(("orders", "shop", "aa"))
        properties = {"KEYS": f"k{chance.randrange(9)}", "TAGS": "hot"} if chance.random() < 0.5 else {"x": "y"}
        halves = service.send(*[b"b" * chance.randrange(300)] * chance.randrange(1, 6), group=group, properties=properties)
        open_halves += [(half, group) for half in halves]
        for half, owner in chance.sample(open_halves, min(len(open_halves), chance.randrange(6))):
            service.end(half, chance.choice((OpKind.COMMIT, OpKind.ROLLBACK, OpKind.UNKNOWN)), group=owner)
        if chance.random() < 0.2:
            service.beat()
        if chance.random() < 0.1:
            for half, _ in chance.sample(open_halves, min(len(open_halves), 3)):
                service.operate(half, OpKind.RESUME)
        service.sleep(chance.randrange(20))
    service.settle()
    return service


@pytest.fixture
def past(tmp_path, request):
    seed = getattr(request, "param", None) or random.randrange(1 << 32)
    print(f"SEED={seed}")
    data = tmp_path / "data"
    with live_through(data, seed) as service:
        sealer = Sealer(load_keys(data / "keys" / "ids.keys")[0], service.edge.directory.store_id)
        yield SimpleNamespace(data=data, service=service, sealer=sealer)


def exported(alone, data, *args):
    alone("export", "out.parquet", "--data", data, *args)
    return pq.read_table(alone.cwd / "out.parquet").to_pylist()


def told(found, id):
    """A row as the service would tell it."""
    state = STATE.get(found.state, found.state.lower())
    ends = [event for event in found.history if event.event in END]
    end = ends[-1] if ends and state in END else None
    place = found.place if state == "committed" else None
    return {
        "id": id,
        "group": found.group,
        "topic": found.topic,
        "key": found.key or None,
        "state": state,
        "reason": end.remark if end and state == "discarded" else None,
        "settled_by": end.by if end else None,
        "stored_at": at(found.stored_at_ms),
        "settled_at": at(end.at_ms) if end else None,
        "duration_s": (end.at_ms - found.stored_at_ms) / 1000 if end else None,
        "attempts": found.attempts,
        "queue_id": place[0] if place else None,
        "queue_offset": place[1] if place else None,
        "half_offset": found.half_offset,
    }


def at(ms):
    return datetime.fromtimestamp(ms / 1000, UTC)


def test_a_row_is_what_the_service_tells(past, alone):
    """Beside the writers, which have the store open."""
    edge = past.service.edge
    histories = Histories(edge)
    rows = exported(alone, past.data)
    assert [row["half_offset"] for row in rows] == list(range(edge.half_end))
    for row in rows:
        half = row["half_offset"]
        expected = told(histories.of(half), past.sealer.seal(half, edge.read_half(half).fields["group_no"]))
        assert {name: row[name] for name in expected} == expected
        assert row["tags"] == ("hot" if row["key"] else None)
        assert row["body_bytes"] == len(edge.read_half(half).body)
    assert {row["state"] for row in rows} >= {"pending", "committed", "rolled_back", "discarded"}
    histories.close()


def test_filters_choose_what_they_say(past, alone):
    rows = exported(alone, past.data)
    middle = sorted(row["stored_at"] for row in rows)[len(rows) // 2]
    since = middle.isoformat()
    out = alone.cwd / "chosen.parquet"
    for args, fits in (
        (("--since", since), lambda row: row["stored_at"] >= middle),
        (("--until", since), lambda row: row["stored_at"] < middle),
        (("--since", since, "--until", since), lambda row: False),
        (("--group", "orders"), lambda row: row["group"] == "orders"),
        (
            ("--group", "orders", "--group", "aa", "--state", "pending"),
            lambda row: row["group"] != "shop" and row["state"] == "pending",
        ),
        (("--topic", "paid", "--state", "settled"), lambda row: row["state"] in END),
        (("--state", "discarded"), lambda row: row["state"] == "discarded"),
    ):
        assert main(["export", str(out), "--data", str(past.data), *args]) == 0
        assert pq.read_table(out).to_pylist() == [row for row in rows if fits(row)], args


@pytest.mark.parametrize("past", [0, 9, 36], ids=["any", "a-half-gone-before-its-row", "and-its-op"], indirect=True)
def test_what_retention_took_is_not_there_and_the_rest_is_whole(past, alone):
    service = past.service
    service.sleep(3600)
    for group in ("orders", "shop", "aa"):
        service.send(b"new", group=group)
    for half in range(service.edge.half_end - 10):
        service.operate(half, OpKind.RESUME, OpKind.ROLLBACK)
    service.settle()
    service.sleep(3600)
    service.settle()
    assert service.retain(600)
    rows = exported(alone, past.data)
    first = rows[0]["half_offset"]
    assert first > 0
    assert [row["half_offset"] for row in rows] == list(range(first, service.edge.half_end))
    gone = [row for row in rows if is_gone(service.edge, row["half_offset"])]
    assert [row["half_offset"] for row in gone] == list(range(first, first + len(gone)))
    for row in gone:  # its row is still there, and says how it ended
        assert row["state"] in END
        assert {row[name] for name in ("id", "group", "topic", "stored_at", "duration_s", "body_bytes")} == {None}
        assert row["settled_at"] is None or row["settled_at"] > at(T0_MS)
    for row in rows[len(gone) :]:
        assert row["stored_at"]
        assert row["group"]
        assert row["state"] not in END or row["duration_s"] >= 0


def is_gone(edge, half_offset):
    try:
        edge.read_half(half_offset)
    except SegmentGone:
        return True
    return False


def test_a_corrupt_half_is_a_row_in_quarantine(past, alone):
    service, half = past.service, 7
    frame = service.edge.read_half(half)
    past.service.close()
    segment = frame.commit_log_offset - frame.commit_log_offset % SMALLEST.commit_log_segment_bytes
    path = past.data / "store" / "commitlog" / f"{segment:020d}"
    content = bytearray(path.read_bytes())
    content[frame.commit_log_offset % SMALLEST.commit_log_segment_bytes + 130] ^= 0xFF
    path.write_bytes(content)
    rows = exported(alone, past.data)
    assert (rows[half]["state"], rows[half]["id"], rows[half]["group"], rows[half]["stored_at"]) == (
        "quarantined",
        None,
        None,
        None,
    )
    assert rows[half - 1]["group"] is not None
    service.open()


def test_without_keys_without_ids(tmp_path, alone):
    with EdgeStore(tmp_path / "data" / "store", geometry=SMALLEST):
        done = alone.run("export", "out.parquet", "--data", tmp_path / "data")
    assert b"the column id stays empty" in done.stderr
    assert not (tmp_path / "data" / "keys").exists()
    assert done.stdout.startswith(b"out.parquet: 0 transactions")
    assert pq.read_table(alone.cwd / "out.parquet").num_rows == 0


def test_what_goes_wrong_leaves_the_file_as_it_was(past, alone):
    out = alone.cwd / "out.parquet"
    out.write_text("mine")
    assert "no such group" in alone.error("export", out, "--data", past.data, "--group", "nobody")
    assert "not an Escrow store" in alone.error("export", out, "--data", alone.cwd / "nowhere")
    assert "No such file" in alone.error("export", alone.cwd / "no" / "directory", "--data", past.data)
    assert out.read_text() == "mine"
    assert [path.name for path in alone.cwd.iterdir() if path.name.endswith(".new")] == []


def test_json(past, alone):
    [said] = alone.json("export", "out.parquet", "--data", past.data, "--until", str(T0_MS))
    assert said == {"file": "out.parquet", "rows": 0, "size_bytes": (alone.cwd / "out.parquet").stat().st_size}
