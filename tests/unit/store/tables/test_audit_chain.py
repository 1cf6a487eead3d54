"""The audit's chain: any change of what was written is found."""

from __future__ import annotations

import json

import pytest

from store.errors import Corrupt
from store.io.journal import Journal, decode
from store.tables.journals.audit import Audit, AuditRecord, Head, check_chain, hash_of


def record(number):
    return AuditRecord(1000 + number, "ada", "commit", f"{number} transactions", "why", "begun")


@pytest.fixture
def path(tmp_path):
    audit = Audit(tmp_path / "audit", writable=True)
    for number in range(6):
        assert audit.append(record(number)) == number
    audit.close()
    return tmp_path / "audit"


def payloads(path):
    return [payload for _, payload in decode(path.read_bytes())]


def rewrite(path, found):
    journal = Journal(path, "audit", writable=True)
    journal.recover()
    journal.replace(found)
    journal.close()


def test_a_sound_audit_is_linked_across_restarts(path):
    again = Audit(path, writable=True)
    again.append(record(6))
    head = again.head
    again.close()
    assert check_chain(path) == head == Head(7, hash_of(payloads(path)[-1]))
    assert check_chain(path.parent / "none") == Head(0, "")


def changed(found):
    said = json.loads(found[2])
    said["actor"] = "eve"
    return [*found[:2], json.dumps(said, sort_keys=True).encode(), *found[3:]]


@pytest.mark.parametrize(
    ("change", "at"),
    [
        (changed, 3),
        (lambda found: found[:2] + found[3:], 2),
        (lambda found: [*found[:2], found[3], found[2], *found[4:]], 2),
        (lambda found: [*found[:3], json.dumps({"at_ms": 1}).encode(), *found[3:]], 3),
        (lambda found: found[1:], 0),
    ],
    ids=["changed", "removed", "swapped", "put in", "first removed"],
)
def test_a_break_in_the_chain_is_named(path, change, at):
    rewrite(path, change(payloads(path)))
    with pytest.raises(Corrupt, match=f"audit at {at}: the record"):
        check_chain(path)


def test_anchors_find_what_the_chain_cannot(path):
    found = payloads(path)
    anchors = [Head(3, hash_of(found[2])), Head(6, hash_of(found[5]))]
    assert check_chain(path, anchors).records == 6
    rewrite(path, found[:4])
    assert check_chain(path).records == 4, "a shortened chain is a chain"
    with pytest.raises(Corrupt, match="an anchor for 6 records: the last ones were removed"):
        check_chain(path, anchors)
    path.unlink()
    audit = Audit(path, writable=True)
    for number in range(10, 16):
        audit.append(record(number))
    audit.close()
    assert check_chain(path).records == 6, "so is one that was written anew"
    with pytest.raises(Corrupt, match="audit at 2: the commit log has an anchor for another record"):
        check_chain(path, anchors)


def test_records_of_before_the_chain_are_covered_by_the_first_link(tmp_path):
    path = tmp_path / "audit"
    old = [
        json.dumps({"at_ms": n, "actor": "ada", "action": "resume", "target": "", "reason": "", "result": "done"}) for n in range(3)
    ]
    journal = Journal(path, "audit", writable=True)
    journal.recover()
    journal.append([each.encode() for each in old])
    journal.close()
    audit = Audit(path, writable=True)
    audit.append(record(3))
    assert [each.actor for each in audit.records()] == ["ada"] * 4
    audit.close()
    assert check_chain(path).records == 4
    rewrite(path, [*payloads(path)[:2], old[2].replace("ada", "eve").encode(), payloads(path)[3]])
    with pytest.raises(Corrupt, match="audit at 3"):
        check_chain(path)


def test_no_anchor():
    assert Head.decode(Head(3, "ab").encode()) == Head(3, "ab")
    for body in (b"", b"[]", b"{}", b"7", b'{"records": []}', b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011
            Head.decode(body)
