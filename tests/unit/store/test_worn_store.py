"""A store of each format with days behind it, killed: every later release recovers it to what was noted when it was made.

The archives and their summaries are made by tests/fixtures/make_fixture.py and kept for ever. (test_old_formats.py has the ones
that were closed in order.)
"""

from __future__ import annotations

import json
import secrets
import tarfile
from pathlib import Path

import pytest

from store.inspect.dump import dump
from store.inspect.verify.store import verify
from store.records import OpKind
from store.tables.ends import Verdict
from store.tables.journals.audit import Audit
from store.tables.journals.consumers import Consumers
from tests.fixtures.make_fixture import build_worn, summary
from tests.support.service import SMALLEST, Service, contents

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(params=(1,), ids=lambda version: f"format-{version}")
def worn(request, tmp_path):
    """(directory, what it must hold)."""
    name = f"store-format-{request.param}-worn"
    with tarfile.open(FIXTURES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path / "store", filter="data")
    return tmp_path / "store", json.loads((FIXTURES / f"{name}.json").read_text())


def as_json(found):
    return json.loads(json.dumps(found))


def test_it_is_sound_as_it_lies_there(worn):
    assert verify(worn[0]).problems == []


def test_it_is_small_and_has_several_files_of_every_family(worn):
    assert all(path.stat().st_size < 200_000 for path in FIXTURES.glob("*.tar.xz"))
    families = ("commitlog", "half/0", "op/0", "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0")
    assert all(len(contents(worn[0], family)) > 1 for family in families)
    assert not any((worn[0] / family / f"{0:020d}").exists() for family in families)  # retention took the first ones


def test_it_is_recovered_and_settled_to_what_was_noted(worn):
    root, noted = worn
    with Service(root, geometry=SMALLEST) as service:
        assert not service.edge.recovery.clean
        assert service.edge.recovery.damage == []
        assert service.job.recovery.reason == ""
        service.settle()
        assert as_json(summary(service)) == noted
    assert verify(root).problems == []


def test_it_is_rebuilt_to_what_was_noted(worn):
    root, noted = worn
    with Service(root, geometry=SMALLEST) as service:
        service.restart(rebuild=True)
        service.settle()
        found = as_json(summary(service))
        # Messages older than retention whose bodies are still there may be missing after a rebuild; nothing else.
        visible, expected = found.pop("visible"), noted.pop("visible")
        extents, before = found.pop("extents"), noted.pop("extents")
        assert found == noted
        assert [(key, end) for key, _, end in extents] == [(key, end) for key, _, end in before]
        assert all(now[1] >= was[1] for now, was in zip(extents, before, strict=True))
        assert all(message in expected[topic] for topic, messages in visible.items() for message in messages)
    assert verify(root).problems == []


def test_ids_that_it_issued_still_work(worn):
    root, noted = worn
    expected = {
        "PREPARED": (Verdict.ACCEPTED, Verdict.ACCEPTED),
        "COMMITTED": (Verdict.ALREADY, Verdict.CONFLICT),
        "ROLLED_BACK": (Verdict.CONFLICT, Verdict.ALREADY),
        "DISCARDED_MAX": (Verdict.REFUSED, Verdict.REFUSED),
    }
    first = noted["halves"][0]
    with Service(root, geometry=SMALLEST) as service:
        assert service.commit(0, group=None)[0].reason == "gone"
        for number, state in enumerate(noted["states"], first):
            kind = OpKind.COMMIT if number % 2 else OpKind.ROLLBACK
            answer = service.end(number, kind, group=None)
            assert answer.reason == "gone" or answer.verdict is expected[state][0 if kind == OpKind.COMMIT else 1], number
        service.settle()
        assert service.pending == 0
        assert service.send_one(b"new") == noted["halves"][1]


def test_its_dumps_can_be_read_to_the_end(worn):
    root, noted = worn
    with Service(root, geometry=SMALLEST) as service:
        service.settle()
    assert [record["state"] for record in dump(root, "state")] == noted["states"]
    for what in ("half", "op", "redo"):
        records = list(dump(root, what))
        assert records, what
        assert {record.get("corrupt", "") for record in records} <= {"", "the log no longer reaches back to its frame"}
    for topic, messages in noted["visible"].items():
        assert len(list(dump(root, "topic", topic))) >= len(messages)


def test_its_small_files_are_read(worn):
    root, _ = worn
    assert [record.actor for record in Audit(root / "audit").records()] == ["ada"]
    assert Consumers(root / "consumers").progress[1, 65].offset == 30


def test_making_it_again_gives_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda size: "e5c0" * (size // 2))
    build_worn(tmp_path / "one")
    build_worn(tmp_path / "two")
    for lock in tmp_path.rglob("*.lock"):
        lock.unlink()
    assert contents(tmp_path / "one", ".") == contents(tmp_path / "two", ".")
