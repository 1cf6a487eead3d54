"""Removed topics: which may go, what stays in the way, and that their numbers never lead anybody to another's messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.admin.backup import MANIFEST, _Copier, backup, restore
from store.directory import FEATURES, FORMAT_FILE, StoreDirectory, format_crc, write_format
from store.edge.removal import remove_topics
from store.edge.store import EdgeStore, End
from store.errors import FormatTooNew, IllegalName, NamesLost, StoreUnusable
from store.inspect.verify.files import Problem
from store.inspect.verify.store import verify
from store.io import journal
from store.job.store import JobStore
from store.messages import Message
from store.records import OpKind, Via, queue_key_of, queue_offset_of
from store.tables.ends import Verdict
from store.tables.journals.names import EDITION_MAX, TOPICS_MAX, Dictionary, NameKind, decode
from tests.support.service import SMALLEST, Service, read_topic

DAY_S = 86_400


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "store", geometry=SMALLEST)
    yield made
    made.close()


def send(service: Service, topic: str, *bodies: bytes) -> list[int]:
    """Ordinary messages, settled; their positions."""
    appended = service.edge.append_messages([Message("g", topic, body) for body in bodies], service.now_ms)
    service.edge.wait(appended.ticket)
    service.settle()
    return list(appended.positions)


def age_out(service: Service, log_bytes: int = 300_000) -> None:
    """Retention takes what there is, and the log moves on."""
    for _ in range(log_bytes // 30_000):
        send(service, "filler", b"x" * 30_000)
    service.sleep(3 * DAY_S)
    send(service, "filler", b"x")
    for _ in range(3):
        service.retain(DAY_S)


def bodies(service: Service, topic: str) -> list[bytes]:
    return [each.body for each in read_topic(service.root, topic)]


def why(service: Service, topic: str) -> str:
    return remove_topics(service.edge, [topic]).kept.get(topic, "")


# --- which may go -----------------------------------------------------------------------------------------------------------
def test_a_topic_that_never_had_a_message_goes(service: Service) -> None:
    service.edge.add_topic("early", 4)
    found = remove_topics(service.edge, ["early"])
    assert (found.removed, found.kept) == (["early"], {})
    assert service.edge.dictionary.topic_no("early") is None
    assert StoreDirectory(service.root).format == 2


def test_a_dry_run_changes_nothing(service: Service) -> None:
    service.edge.add_topic("early", 4)
    assert remove_topics(service.edge, ["early"], dry_run=True).removed == ["early"]
    assert service.edge.dictionary.topic_no("early") == 0
    assert StoreDirectory(service.root).format == 1


def test_what_is_in_the_way_is_told(service: Service) -> None:
    assert "no such topic" in why(service, "nobody")
    service.edge.append_messages([Message("g", "paid", b"x")], service.now_ms)
    assert "not settled" in why(service, "paid")
    service.edge.wait(service.edge.log.end)
    service.settle()
    assert "1 messages" in why(service, "paid")
    (half,) = service.edge.prepare([Message("g", "open", b"x")], service.now_ms)
    assert "1 halves for it are in doubt" in why(service, "open")
    service.edge.end([End(half, OpKind.DISCARD_MAX, None, Via.CHECKER)], service.now_ms)
    assert "1 discarded halves" in why(service, "open")
    service.edge.end([End(half, OpKind.RESUME, None, Via.OPERATOR), End(half, OpKind.ROLLBACK, "g")], service.now_ms)
    assert why(service, "open") == ""
    service.edge.add_topic("%SYS%audit", 1)
    assert "Escrow's own" in why(service, "%SYS%audit")


def test_an_end_that_is_not_flushed_does_not_count(service: Service) -> None:
    (half,) = service.edge.prepare([Message("g", "open", b"x")], service.now_ms)
    _, ticket = service.edge.append_ends([End(half, OpKind.ROLLBACK, "g")], service.now_ms)
    assert "in doubt" in why(service, "open")
    service.edge.wait(ticket)
    assert why(service, "open") == ""


def test_messages_that_aged_out_are_not_in_the_way(service: Service) -> None:
    send(service, "paid", b"1", b"2")
    age_out(service)
    assert why(service, "paid") == ""
    assert verify(service.root).problems == []


# --- sending meanwhile ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["half", "message"])
def test_what_was_encoded_before_the_removal_makes_the_topic_anew(
    service: Service, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal happens between the encoding of a message and its append."""
    edge = service.edge
    edge.add_topic("paid", 4)
    removed: list[list[str]] = []
    encode = edge._encoder.encode

    def then_remove(*given: Any) -> Any:
        encoded = encode(*given)
        if not removed:
            removed.append(remove_topics(edge, ["paid"]).removed)
        return encoded

    monkeypatch.setattr(edge._encoder, "encode", then_remove)
    if kind == "half":
        (half,) = edge.prepare([Message("g", "paid", b"x")], service.now_ms)
        topic_no = edge.read_half(half).fields["topic_no"]
    else:
        (position,) = send(service, "paid", b"x")
        topic_no = queue_key_of(position) >> 6
    assert removed == [["paid"]]
    assert topic_no == edge.dictionary.topic_no("paid") == 1


def test_a_half_that_comes_after_the_look_is_in_the_way(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is appended when the halves have been looked through and before the removal has the lock."""
    edge, came = service.edge, list[int]()
    edge.add_topic("paid", 4)

    class Door:
        """The append lock; whoever takes it first lets a half in before."""

        def __init__(self) -> None:
            self._lock = edge._append_lock

        def __enter__(self) -> None:
            if not came:
                came.append(-1)
                came.append(edge.prepare([Message("g", "paid", b"x")], service.now_ms)[0])
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    monkeypatch.setattr(edge, "_append_lock", Door())
    assert "1 halves for it are in doubt" in why(service, "paid")
    assert came == [-1, 0]


def test_halves_and_removals_race(service: Service) -> None:
    """Every half that was accepted lies in a topic that is there, or was there when it was ended."""
    edge, stop = service.edge, threading.Event()
    troubles: list[int] = []

    def produce() -> None:
        number = 0
        while not stop.is_set():
            (half,) = edge.prepare([Message("g", "paid", b"%d" % number)], service.now_ms)
            known, number = edge.dictionary, number + 1
            topic_no = edge.read_half(half).fields["topic_no"]
            if topic_no in known.removed or known.topics[topic_no] != "paid":
                troubles.append(half)
            edge.end([End(half, OpKind.ROLLBACK, "g")], service.now_ms)

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    removed = sum(bool(remove_topics(edge, ["paid"]).removed) for _ in range(200))
    stop.set()
    for thread in threads:
        thread.join()
    assert not troubles
    assert removed or edge.dictionary.topic_no("paid") is not None


# --- numbers that are used again --------------------------------------------------------------------------------------------
def test_a_number_is_anothers_only_when_the_log_has_passed_the_removal(service: Service) -> None:
    edge = service.edge
    places = send(service, "paid", *[b"%d" % number for number in range(8)])
    age_out(service)
    old = edge.dictionary.topic_no("paid")
    assert remove_topics(edge, ["paid"]).removed == ["paid"]
    service.retain(DAY_S)
    send(service, "soon", b"s")
    assert edge.dictionary.topic_no("soon") != old
    assert old in edge.dictionary.removed
    age_out(service)
    (position,) = send(service, "later", b"l")
    assert edge.dictionary.topic_no("later") == old == queue_key_of(position) >> 6
    assert edge.dictionary.editions[old] == 1
    # It goes on where the queue ended: no place means two messages.
    ends = {int(queue_key_of(place)): int(queue_offset_of(place)) + 1 for place in places}
    assert queue_offset_of(position) == ends[int(queue_key_of(position))]
    assert bodies(service, "later") == [b"l"]
    service.restart(clean=False)
    assert service.edge.dictionary.topic_no("later") == old
    assert bodies(service, "later") == [b"l"]
    assert verify(service.root).problems == []


def reused(service: Service, topic: str = "later", *, queues: int = 4) -> int:
    """Topic `paid` had messages and was removed; another one has its number now. The number."""
    send(service, "paid", *[b"%d" % number for number in range(8)])
    age_out(service)
    assert remove_topics(service.edge, ["paid"]).removed == ["paid"]
    age_out(service)
    return service.edge.add_topic(topic, queues)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rebuild", [True, False])
def test_a_reused_number_after_a_restart(service: Service, clean: bool, rebuild: bool) -> None:
    number = reused(service)
    send(service, "later", b"l", b"m")
    service.restart(clean=clean, rebuild=rebuild)
    assert (service.edge.dictionary.topic_no("later"), service.edge.dictionary.editions[number]) == (number, 1)
    assert sorted(bodies(service, "later")) == [b"l", b"m"]
    assert queue_offset_of(send(service, "later", b"n")[0]) >= 2  # each of the four queues had two messages of `paid`
    assert sorted(bodies(service, "later")) == [b"l", b"m", b"n"]
    service.close()
    assert verify(service.root).problems == []
    service.open()


@pytest.mark.parametrize("queues", [1, 2, 9])
def test_another_number_of_queues(service: Service, queues: int) -> None:
    number = reused(service, queues=queues)
    send(service, "later", *[b"%d" % each for each in range(12)])
    assert service.edge.dictionary.queues[number] == queues
    assert len(bodies(service, "later")) == 12
    service.restart(rebuild=True)
    assert len(bodies(service, "later")) == 12
    service.close()
    assert verify(service.root).problems == []
    service.open()


def test_the_files_of_a_removed_topic_go_and_come_again(service: Service) -> None:
    send(service, "paid", *[b"%d" % number for number in range(8)])
    age_out(service)
    directory = service.job.root / "topics" / str(service.edge.dictionary.topic_no("paid"))
    assert any(directory.glob("*/*"))
    remove_topics(service.edge, ["paid"])
    service.retain(DAY_S)
    assert not directory.exists()
    service.job.checkpoint()  # nothing of it is flushed any more
    age_out(service)
    send(service, "later", b"l")
    assert any(directory.glob("*/*"))
    assert bodies(service, "later") == [b"l"]


def test_the_same_name_again_is_another_topic(service: Service) -> None:
    reused(service, "paid")
    send(service, "paid", b"l")
    assert bodies(service, "paid") == [b"l"]


def test_a_number_that_was_used_to_the_end_stays_unused(service: Service) -> None:
    known = service.edge.dictionary
    service.edge.add_topic("paid", 1)
    remove_topics(service.edge, ["paid"])
    known.editions[0] = EDITION_MAX
    assert known.passed(1 << 40) == []
    known.editions[0] = EDITION_MAX - 1
    assert known.passed(1 << 40) == [0]


def test_all_numbers_used(service: Service) -> None:
    names = [f"t{number}" for number in range(TOPICS_MAX)]
    service.edge.dictionary.add_names([], names, queues=1)
    with pytest.raises(IllegalName, match="escrow topic remove"):
        service.edge.add_topic("more", 1)
    assert len(remove_topics(service.edge, names).removed) == TOPICS_MAX
    with pytest.raises(IllegalName):  # the log has not passed it
        service.edge.add_topic("more", 1)
    service.edge.dictionary.free(service.edge.dictionary.passed(1 << 40))
    assert service.edge.dictionary.topic_numbers_used == 0
    assert service.edge.add_topic("more", 1) == 0


def test_what_a_token_made_counts_down(service: Service) -> None:
    service.edge.maker_of = lambda kind, name: "tenant" if kind == NameKind.TOPIC else ""
    service.edge.append_halves([Message("g", "a", b"x"), Message("g", "b", b"x")], service.now_ms)
    service.edge.wait(service.edge.log.end)
    made = service.edge.dictionary.made
    assert made[NameKind.TOPIC, "tenant"] == 2
    service.edge.end([End(0, OpKind.ROLLBACK, "g")], service.now_ms)
    assert remove_topics(service.edge, ["a", "b"]).removed == ["a"]
    assert made[NameKind.TOPIC, "tenant"] == 1
    service.restart(clean=False)
    assert service.edge.dictionary.made[NameKind.TOPIC, "tenant"] == 1
    assert service.edge.dictionary.maker_of_topic(1) == "tenant"


def test_a_half_that_is_reopened_after_the_removal_is_not_released(service: Service) -> None:
    """Its op was damaged after the topic was removed: the half is in doubt again, and its topic is nobody's."""
    (half,) = service.send(b"x", topic="paid")
    service.roll_back(half)
    assert why(service, "paid") == ""
    service.edge.ends_table[half] = 0
    (answer,) = service.commit(half)
    assert (answer.verdict, answer.reason) == (Verdict.REFUSED, "topic removed")
    assert service.roll_back(half)[0].verdict is Verdict.ACCEPTED


# --- names learnt again -----------------------------------------------------------------------------------------------------
def lose_records(root: Path, is_lost: Callable[[bytes], bool]) -> None:
    """Records of the dictionary are damaged."""
    found = journal.survey(root / "dictionary").payloads
    (root / "dictionary").write_bytes(journal.encode_all([payload for payload in found if not is_lost(payload)]))


def test_a_lost_dictionary_after_a_removal(service: Service) -> None:
    """`paid` was removed and made anew: the later one counts, whatever its number."""
    service.roll_back(*service.send(b"1", topic="paid"))
    assert why(service, "paid") == ""
    (again,) = service.send(b"2", topic="paid")
    service.close()
    (service.root / "dictionary").unlink()
    service.open()
    known = service.edge.dictionary
    assert (known.topic_no("paid"), list(known.removed)) == (1, [0])
    service.commit(again)
    service.settle()
    assert bodies(service, "paid") == [b"2"]
    service.restart()
    assert service.edge.dictionary.topic_no("paid") == 1


def test_a_lost_dictionary_where_the_later_number_is_the_lower_one(service: Service) -> None:
    service.edge.add_topic("low", 4)
    service.edge.add_topic("twice", 4)
    assert why(service, "low") == ""
    age_out(service)
    service.roll_back(*service.send(b"1", topic="twice"))
    assert (service.edge.dictionary.topic_no("twice"), why(service, "twice")) == (1, "")
    send(service, "twice", b"2")
    assert service.edge.dictionary.topic_no("twice") == 0
    service.close()
    (service.root / "dictionary").unlink()
    service.open()
    assert service.edge.dictionary.topic_no("twice") == 0
    assert bodies(service, "twice") == [b"2"]
    assert verify_after_close(service) == []


def verify_after_close(service: Service) -> list[Problem]:
    service.close()
    found = verify(service.root).problems
    service.open()
    return found


@pytest.mark.parametrize("lost", ["removal", "reuse", "both", "first"])
def test_lost_records_of_a_reused_number(service: Service, lost: str) -> None:
    number = reused(service)
    send(service, "later", b"l")
    service.close()

    def is_lost(payload: bytes) -> bool:
        record = decode(payload)
        if record.number != number or record.kind not in (NameKind.TOPIC, NameKind.REMOVED):
            return False
        of = "removal" if record.kind == NameKind.REMOVED else "reuse" if record.edition else "first"
        return of == lost or (lost == "both" and of != "first")

    lose_records(service.root, is_lost)
    if lost == "both":  # an older dictionary and this log contradict each other
        with pytest.raises(NamesLost, match="paid"):
            EdgeStore(service.root)
        (service.root / "dictionary").unlink()
    service.open()
    known = service.edge.dictionary
    assert (known.topic_no("later"), known.topic_no("paid")) == (number, None)
    assert bodies(service, "later") == [b"l"]
    if lost != "both":
        assert known.editions[number] == 1
    assert verify_after_close(service) == []


# --- backups ----------------------------------------------------------------------------------------------------------------
def test_a_backup_keeps_removals_and_editions(service: Service, tmp_path: Path) -> None:
    number = reused(service)
    send(service, "later", b"l")
    service.edge.add_topic("gone", 1)
    remove_topics(service.edge, ["gone"])
    backup(service.root, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    assert StoreDirectory(tmp_path / "restored").needs == StoreDirectory(service.root).needs
    with EdgeStore(tmp_path / "restored") as edge, JobStore(tmp_path / "restored"):
        known = edge.dictionary
        assert (known.topic_no("later"), known.topic_no("gone"), known.editions[number]) == (number, None, 1)
    assert [each.body for each in read_topic(tmp_path / "restored", "later")] == [b"l"]
    assert verify(tmp_path / "restored").problems == []


# --- the format -------------------------------------------------------------------------------------------------------------
def test_a_feature_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    EdgeStore(tmp_path).close()
    directory = StoreDirectory(tmp_path)
    write_format(tmp_path, directory.store_id, directory.geometry, [*FEATURES, "members"])
    with pytest.raises(FormatTooNew, match="needs members"):
        EdgeStore(tmp_path)


def test_format_2_says_what_it_needs_under_its_crc(tmp_path: Path) -> None:
    EdgeStore(tmp_path).close()
    directory = StoreDirectory(tmp_path)
    directory.require("topic-removal")
    found = json.loads((tmp_path / FORMAT_FILE).read_text())
    assert (found["escrow_format"], found["needs"], found["crc"]) == (2, ["topic-removal"], format_crc(found))
    assert (directory.format, StoreDirectory(tmp_path).needs) == (2, frozenset({"topic-removal"}))


def test_a_store_without_removals_stays_format_1(service: Service) -> None:
    send(service, "paid", b"x")
    assert "messages" in why(service, "paid")
    service.restart()
    assert StoreDirectory(service.root).format == 1
    assert Dictionary(service.root / "dictionary").editions == [0]


def test_a_backup_during_which_a_number_is_used_again_is_refused(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log that it copied tells of the old topic, the dictionary of the new one."""
    send(service, "paid", b"1")
    age_out(service)
    remove_topics(service.edge, ["paid"])
    segments = _Copier.segments

    def then_reuse(self: Any, directory: Path, *given: Any) -> None:
        segments(self, directory, *given)
        if directory.name == "commitlog":
            age_out(service)
            service.edge.add_topic("later", 1)

    monkeypatch.setattr(_Copier, "segments", then_reuse)
    with pytest.raises(StoreUnusable, match="make the backup again"):
        backup(service.root, tmp_path / "backup")
    assert not (tmp_path / "backup" / MANIFEST).exists()
