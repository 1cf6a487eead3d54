"""Cases of docs/cases.md that do not need HTTP, in Kafka mode: plain Kafka clients on one side, the real job on the other.

The job's clock is moved by the test; stored times are the broker's. `settled` is the barrier: a half that is committed last and
comes out says that everything before it in its shard was settled.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sinks.kafka import contract
from sinks.kafka.clients import Connection
from sinks.kafka.task import Target
from store.job.shard import ShardStore
from store.records import State, check_count_of, state_of
from streaming.kafka.shard import Shard
from tests.support.kafka import Cluster
from tests.support.kafka_world import KafkaWorld, Place
from tests.support.same_history import LIVE, groups_of, history, other, play_embedded

#: Rounds are far apart: only a test starts one, however slow the machine is.
INTERVAL_S = 600
ROUND_S = INTERVAL_S + 1

#: Small, so that a test can have more than the driver keeps.
BATCH = 200

TOPICS = ("cases", "barrier", "many", "mixed", "heels", "same", "rebuilt")

#: The first test waits for Kafka, Java and Spark to start.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def world(kafka: Cluster) -> Iterator[KafkaWorld]:
    with KafkaWorld(
        kafka,
        1,
        [
            "transactionCheckMax=2",
            f"transactionCheckInterval={INTERVAL_S}s",
            "kafkaRetryInterval=1s",
            f"maxRecordsPerBatch={BATCH}",
        ],
    ) as world:
        for topic in TOPICS:
            kafka.create_topic(topic)
        world.start()
        pass_the_first_round(world)
        yield world


def pass_the_first_round(world: KafkaWorld) -> None:
    """A new shard begins its first round as soon as something is pending, however long Spark takes to bring it. From then on only
    a test begins one."""
    place = world.prepare(b"first", "cases", group="first")
    world.await_that(lambda: rounds_done(world), bool)
    world.say(place, "ROLLBACK", group="first")
    settled(world)


def settled(world: KafkaWorld) -> None:
    """Everything that was written before is settled."""
    place = world.prepare(b"barrier", "barrier")
    world.say(place, "COMMIT")
    world.await_that(lambda: places_in(world, "barrier"), lambda found: place in found)


def places_in(world: KafkaWorld, topic: str) -> Counter[Place]:
    """Transactions that came out of a topic, by the header that was added."""
    return Counter(place_of(message) for message in world.released(topic))


def place_of(message: Any) -> Place:
    partition, _, offset = dict(message.headers())["escrow-transaction-id"].decode().partition("-")
    return int(partition), int(offset)


def discards_of(world: KafkaWorld, place: Place) -> list[Any]:
    return [message for message in world.cluster.read_all(world.discard) if place_of(message) == place]


def checks_of(world: KafkaWorld, place: Place) -> list[Any]:
    return [message for message in world.cluster.read_all(world.check) if place_of(message) == place]


@contextlib.contextmanager
def member(world: KafkaWorld, group: str, *, commits: bool = True) -> Iterator[None]:
    """A live member of a producer group: a consumer of the check topic in the group's own consumer group. It takes every
    request (and commits that), and answers none."""
    consumer = checks_consumer(world, group)
    joined, leaving = threading.Event(), threading.Event()

    def poll() -> None:
        while not leaving.is_set():
            record = consumer.poll(0.1)
            if commits and record is not None and record.error() is None:
                consumer.commit(message=record, asynchronous=False)
            if consumer.assignment():
                joined.set()
        consumer.close()

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        assert joined.wait(240)
        yield
    finally:
        leaving.set()
        thread.join(60)


def checks_consumer(world: KafkaWorld, group: str) -> Consumer:
    """A member that has committed nothing reads from the beginning, and what it read is for the next member to read again.

    (librdkafka, not kafka-python, which the examples use: a member of the latter was once seen to be given no partition when its
    first metadata came late, and to wait for ever after.)
    """
    consumer = Consumer({
        "bootstrap.servers": world.cluster.bootstrap, "group.id": world.check_prefix + group,
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 2,
    })  # fmt: skip
    consumer.subscribe([world.check])
    return consumer


def next_round(world: KafkaWorld) -> None:
    """A round about all that was written before: a half that is not settled when it begins waits for the next one."""
    settled(world)
    world.advance(ROUND_S)


def asked(world: KafkaWorld, places: Iterable[Place]) -> set[Place]:
    """Those of these halves that were asked about."""
    return set(places) & {place_of(message) for message in world.cluster.read_all(world.check)}


def figures(world: KafkaWorld) -> dict[str, float]:
    """The job's metrics, by name and labels."""
    port = next(line["metrics_port"] for line in world.jobs[-1].lines if line.get("ready"))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))}


def rounds_done(world: KafkaWorld) -> float:
    return figures(world)["escrow_check_rounds_total"]


def counted(world: KafkaWorld) -> Counter[Place]:
    """How often a request about each half was counted: a member had taken it."""
    ops = [message for message in world.cluster.read_all(world.op) if dict(message.headers() or ()).get("escrow-op") == b"ASKED"]
    return Counter((0, half_offset) for message in ops for half_offset in np.frombuffer(message.value(), "<i8").tolist())


def all_counted(world: KafkaWorld, places: Iterable[Place]) -> bool:
    """Whether each request about these halves was."""
    written = Counter(place_of(message) for message in world.cluster.read_all(world.check))
    found = counted(world)
    return all(found[place] == written[place] for place in places)


def test_the_first_end_in_the_op_partition_wins_5_6_27_28_29_32_33_34_35_52(world: KafkaWorld) -> None:
    said = {
        "unknown": ["UNKNOWN"],
        "rolled back": ["ROLLBACK"],
        "twice": ["COMMIT", "COMMIT"],
        "late rollback": ["COMMIT", "ROLLBACK"],
        "late commit": ["ROLLBACK", "COMMIT"],
        "after an unknown": ["UNKNOWN", "COMMIT"],
        "also from a check": ["COMMIT"],
    }
    places = {name: world.prepare(name.encode(), "cases") for name in said}
    wrong = world.prepare(b"wrong group", "cases", group="Aa")
    waits = [world.send_op(places[name], kind) for name, kinds in said.items() for kind in kinds]
    waits.append(world.send_op(places["also from a check"], "COMMIT", via="check"))
    waits.append(world.send_op(wrong, "COMMIT", group="BB"))
    waits.append(world.send_op((0, 1_000_000_000), "COMMIT"))  # no such half
    waits.append(world.producer.send(world.op, b"?", partition=0))  # no headers at all
    waits.append(world.producer.send(world.op, b"", partition=0, headers=[("escrow-op", b"EXPLODE"), ("escrow-half-offset", b"x")]))
    waits.append(world.producer.send(world.half, b"a half without a group", partition=0))
    for wait in waits:
        wait.get(60)
    settled(world)
    released = places_in(world, "cases")
    assert released == Counter(places[name] for name in ("twice", "late rollback", "after an unknown", "also from a check"))
    world.say(wrong, "COMMIT", group="Aa")  # still pending
    world.await_that(lambda: places_in(world, "cases"), lambda found: wrong in found)


def test_a_due_half_is_asked_about_once_a_round_if_somebody_can_be_asked_11_16_20_31_44_45(world: KafkaWorld) -> None:
    asked = world.prepare(b"asked", "cases", group="present", key=b"order 7", escrow_born_time="1700000000000", trace="abc")
    held = world.prepare(b"held", "cases", group="absent")
    immune = world.prepare(b"immune", "cases", group="present", escrow_immunity="3000")
    with member(world, "present"):
        next_round(world)
        (check,) = world.await_that(lambda: checks_of(world, asked), bool)
        settled(world)
        assert len(checks_of(world, asked)) == 1
        assert not checks_of(world, held)
        assert not checks_of(world, immune)
        headers = dict(check.headers())
        assert (check.key(), check.value(), headers["escrow-key"], headers["trace"]) == (b"present", b"asked", b"order 7", b"abc")
        assert (headers["escrow-topic"], headers["escrow-check-count"]) == (b"cases", b"0")
        assert headers["escrow-born-time"] == b"1700000000000"
        world.say(asked, "COMMIT", group="present", via="check")
        world.await_that(lambda: places_in(world, "cases"), lambda found: found[asked] == 1)
    with member(world, "absent"):
        next_round(world)
        world.await_that(lambda: checks_of(world, held), bool)
        settled(world)
        assert len(checks_of(world, asked)) == 1, "ended: never asked again"
    world.say(held, "ROLLBACK", group="absent", via="check")
    world.say(immune, "ROLLBACK", group="present")
    settled(world)


def test_unknown_for_ever_is_asked_checkmax_times_and_discarded_once_and_can_be_resumed_10_30_47_61(world: KafkaWorld) -> None:
    place = world.prepare(b"nobody knows", "cases", group="unsure", key=b"k")

    with member(world, "unsure"):
        rounds = 0
        while not discards_of(world, place):
            rounds += 1
            assert rounds < 30
            done = rounds_done(world)
            next_round(world)
            world.await_that(lambda: rounds_done(world) > done or discards_of(world, place), bool)  # noqa: B023 - called at once
            world.await_that(lambda: all_counted(world, [place]), bool)
            settled(world)
        assert len(checks_of(world, place)) == 2
    (discard,) = discards_of(world, place)
    assert (discard.key(), discard.value(), dict(discard.headers())["escrow-reason"]) == (b"k", b"nobody knows", b"check_max")
    world.say(place, "COMMIT", group="unsure")
    settled(world)
    assert place not in places_in(world, "cases"), "a commit after the discard is refused"
    world.say(place, "RESUME", group=None, via="operator")
    world.say(place, "COMMIT", group="unsure")
    world.await_that(lambda: places_in(world, "cases"), lambda found: found[place] == 1)
    assert len(discards_of(world, place)) == 1


def test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57(world: KafkaWorld) -> None:
    kinds = ("COMMIT", "ROLLBACK", "COMMIT in check", "ROLLBACK in check", "UNKNOWN")
    waits = [world.send_half(b"%d" % number, "mixed", group="mixed") for number in range(120)]
    places = [(done.partition, done.offset) for done in (wait.get(60) for wait in waits)]
    settled(world)
    assert not places_in(world, "mixed"), "stored, and visible to nobody"
    of = {kind: places[number::5] for number, kind in enumerate(kinds)}
    for kind in ("COMMIT", "ROLLBACK", "UNKNOWN"):
        for wait in [world.send_op(place, kind, group="mixed") for place in of[kind]]:
            wait.get(60)
    world.await_that(lambda: places_in(world, "mixed"), lambda found: found == Counter(of["COMMIT"]))  # the oldest are pending
    left = {*of["COMMIT in check"], *of["ROLLBACK in check"], *of["UNKNOWN"]}
    with member(world, "mixed"):
        next_round(world)
        world.await_that(lambda: asked(world, places), lambda found: found == left)
        for kind in ("COMMIT", "ROLLBACK"):
            for wait in [world.send_op(place, kind, group="mixed", via="check") for place in of[f"{kind} in check"]]:
                wait.get(60)
        settled(world)
    assert places_in(world, "mixed") == Counter([*of["COMMIT"], *of["COMMIT in check"]])
    for place in of["UNKNOWN"]:
        world.send_op(place, "ROLLBACK", group="mixed").get(60)


def test_immunity_is_a_number_of_seconds_or_the_default_and_costs_no_attempt_9_39_40_41_42_43_65(world: KafkaWorld) -> None:
    """(To the second, 38, the rule is played in tests/unit/checker: here the broker's clock says when a half was stored.)"""
    ahead_s = world.ahead_s  # what is stored now is that old at once
    texts = ("1", "5", "7", "100", "-1", "100.5", "", "abc")
    soon = [world.prepare(b"soon", "cases", group="Aa", escrow_immunity=text) for text in texts]
    soon += [world.prepare(b"clock", "cases", group="Aa", escrow_born_time=text) for text in ("1", "99999999999999")]
    late = (str(ahead_s + 1000), str(ahead_s + 1500), "9" * 30)
    second, third, never = (world.prepare(b"late", "cases", group="Aa", escrow_immunity=text) for text in late)
    committed = world.prepare(b"committed inside", "cases", group="Aa", escrow_immunity=late[1])
    other = world.prepare(b"other", "cases", group="BB")
    everything, so_far = [*soon, second, third, never, committed, other], set[Place]()
    settled(world)
    with member(world, "Aa"):
        for due in (soon, [second], [third]):
            next_round(world)
            so_far.update(due)
            world.await_that(lambda: asked(world, everything), lambda found: found == so_far)
            for place in due:
                world.say(place, "ROLLBACK", group="Aa", via="check")
            if due == [second]:
                world.say(committed, "COMMIT", group="Aa")
                world.await_that(lambda: places_in(world, "cases"), lambda found: found[committed] == 1)
        settled(world)
    assert asked(world, everything) == so_far
    assert [dict(check.headers())["escrow-check-count"] for check in checks_of(world, third)] == [b"0"]
    for place, group in ((never, "Aa"), (other, "BB")):
        world.say(place, "ROLLBACK", group=group)


def test_a_request_that_one_member_did_not_finish_goes_to_another_and_counts_once_46(world: KafkaWorld) -> None:
    place = world.prepare(b"for two", "cases", group="two")

    def take() -> bytes:
        """A member reads the request, and goes without a word."""
        consumer = checks_consumer(world, "two")
        try:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                record = consumer.poll(1)
                if record is not None and record.error() is None and place_of(record) == place:
                    return record.value() or b""
            raise AssertionError("no request within a minute")
        finally:
            consumer.close()

    with member(world, "two", commits=False):
        next_round(world)
        world.await_that(lambda: checks_of(world, place), bool)
    assert take() == take() == b"for two"
    settled(world)
    assert counted(world)[place] == 0
    with member(world, "two"):  # the third one finishes
        world.await_that(lambda: counted(world)[place], lambda found: found == 1)
    assert [dict(check.headers())["escrow-check-count"] for check in checks_of(world, place)] == [b"0"]
    world.say(place, "ROLLBACK", group="two", via="check")


def test_poison_and_ops_that_come_early_or_late_hinder_nobody_22_37_50_56(world: KafkaWorld) -> None:
    poison = [
        [("escrow-group", b"\xff"), ("escrow-topic", b"cases")],
        [("escrow-group", b"orders"), ("escrow-topic", b"\xff\xfe")],
        [("escrow-group", b""), ("escrow-topic", b"")],
    ]
    sent = [world.producer.send(world.half, None, key=b"k", partition=0, headers=headers).get(60) for headers in poison]
    for done in sent:
        for kind in ("COMMIT", "RESUME", "COMMIT"):
            world.say((0, done.offset), kind)
    tombstone = world.prepare(None, "cases", key=b"k")
    world.say((0, tombstone[1] + 2), "COMMIT", group="far")  # about the half after the next, which is not there yet: about nothing
    settled(world)
    late = world.prepare(b"late", "cases", group="far")
    settled(world)
    assert late == (0, tombstone[1] + 2)
    assert not places_in(world, "cases")[late]
    for number in range(100):  # ends on the heels of their halves: whatever a batch holds of both, none is lost
        world.send_op(world.prepare(b"%d" % number, "heels"), "COMMIT")
    waits = [world.send_op((0, 10**12 + number), "COMMIT") for number in range(2000)]
    with member(world, "far"):
        for wait in waits:
            wait.get(60)
        world.say(late, "COMMIT", group="far")
        world.say(tombstone, "COMMIT")
        world.advance(ROUND_S)
        settled(world)
        assert not checks_of(world, late), "its end was on its way"
    assert len(places_in(world, "heels")) == 100
    found = places_in(world, "cases")
    assert [found[place] for place in (late, tombstone)] == [1, 1]
    assert not [done.offset for done in sent if found[0, done.offset]]


@contextlib.contextmanager
def open_transaction(world: KafkaWorld) -> Iterator[None]:
    """Somebody's in the half partition, with a half that nobody may read; in the end it is aborted."""
    producer = Producer({"bootstrap.servers": world.cluster.bootstrap, "transactional.id": "somebody-else"})
    producer.init_transactions(60)
    producer.begin_transaction()
    headers: dict[str, str | bytes | None] = {"escrow-group": b"orders", "escrow-topic": b"cases"}
    producer.produce(world.half, b"never", partition=0, headers=headers)
    assert producer.flush(60) == 0
    yield
    producer.abort_transaction(60)


def test_an_end_waits_for_a_half_behind_a_transaction_that_is_still_open(world: KafkaWorld) -> None:
    """Nobody may read the half yet, and its group is not known before it is read."""
    settled(world)
    with open_transaction(world):
        place = world.prepare(b"behind", "cases", group="newcomers")
        collected = 'escrow_batch_phase_seconds_count{phase="settle"}'
        before = figures(world)[collected]
        world.say(place, "COMMIT", group="newcomers")
        world.await_that(lambda: figures(world)[collected], lambda now: now > before)
        assert not places_in(world, "cases")[place]
    world.await_that(lambda: places_in(world, "cases")[place], bool)
    settled(world)
    assert places_in(world, "cases")[place] == 1


def test_more_ends_than_the_driver_keeps_wait_for_halves_behind_an_open_transaction(world: KafkaWorld) -> None:
    settled(world)
    count, log = 12 * BATCH, world.jobs[-1].directory / "logs" / "job-events.log"
    with open_transaction(world):
        waits = [world.send_half(b"%d" % number, "many") for number in range(count)]
        places = [(done.partition, done.offset) for done in (wait.get(60) for wait in waits)]
        for wait in [world.send_op(place, "COMMIT") for place in places]:
            wait.get(60)
        world.await_that(lambda: "read again later" in log.read_text() if log.exists() else False, bool)
        assert not world.released("many")
    released = world.await_released("many", count)
    assert [int(message.value()) for message in released] == list(range(count)), "each once, in the order of their ends"
    settled(world)
    assert len(world.released("many")) == count


def test_a_release_that_kafka_refuses_waits_on_a_list_and_the_rest_goes_on(world: KafkaWorld) -> None:
    world.cluster.create_topic("small", 1, max_message_bytes="2000")
    refused = {
        "missing": world.prepare(b"missing", "not-yet-there"),
        "large": world.prepare(os.urandom(5000), "small"),
        "partition": world.prepare(b"partition", "cases", escrow_partition="7"),
        "own": world.prepare(b"own", world.redo),
        "name": world.prepare(b"name", "a\0b"),
    }
    fine = [world.prepare(b"fine %d" % number, "small") for number in range(20)]
    for place in [*refused.values(), *fine]:
        world.say(place, "COMMIT")
    world.await_that(lambda: places_in(world, "small"), lambda found: len(found) == len(fine))
    settled(world)
    assert places_in(world, "small") == Counter(fine)
    world.cluster.create_topic("not-yet-there")
    set_topic(world, "small", "max.message.bytes", "100000")
    world.advance(2)
    world.await_that(lambda: places_in(world, "not-yet-there"), lambda found: found == Counter([refused["missing"]]))
    world.await_that(lambda: places_in(world, "small"), lambda found: found == Counter([*fine, refused["large"]]))


def test_a_discard_that_cannot_be_stored_waits_on_the_list_too_48(world: KafkaWorld) -> None:
    place, before = world.prepare(os.urandom(5000), "cases", group="too-large"), undeliverable(world)
    set_topic(world, world.discard, "max.message.bytes", "2000")
    with member(world, "too-large"):
        rounds = 0
        while undeliverable(world) == before:
            rounds += 1
            assert rounds < 30
            next_round(world)
            settled(world)
    assert not discards_of(world, place)
    set_topic(world, world.discard, "max.message.bytes", "100000")
    world.advance(2)
    world.await_that(lambda: discards_of(world, place), bool)
    world.await_that(lambda: undeliverable(world), lambda count: count == before)
    assert len(discards_of(world, place)) == 1


def test_the_same_history_has_the_same_end_as_in_embedded_mode(world: KafkaWorld, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    phases = history(seed)
    flags = ("transactionCheckMax=2", f"transactionCheckInterval={INTERVAL_S}s", "transactionTimeOut=6s")
    wanted = play_embedded(tmp_path / "embedded", phases, ROUND_S, *flags)
    places, groups = list[Place](), groups_of(phases)
    with member(world, LIVE):
        for phase in phases:
            places += [world.prepare(b"x", "same", group=group) for group in phase.groups]
            for half, kind, wrong in phase.ops:
                group = None if kind == "RESUME" else other(groups[half]) if wrong else groups[half]
                world.say(places[half], kind, group=group, via="operator" if kind == "RESUME" else "producer")
            settled(world)
            rounds = rounds_done(world)
            next_round(world)
            world.await_that(lambda: rounds_done(world), lambda now: now > rounds)  # noqa: B023
            world.await_that(lambda: all_counted(world, places), bool)  # noqa: B023
            settled(world)
    settled(world)
    assert rows_of(world, places, tmp_path / "copy") == wanted
    assert places_in(world, "same") == Counter(
        place for place, (state, _) in zip(places, wanted, strict=True) if state is State.COMMITTED
    )


def rows_of(world: KafkaWorld, places: list[Place], directory: Path) -> list[tuple[State, int]]:
    """(state, check_count) of halves, from the redo topic alone."""
    topics = contract.Topics(world.half, world.op, world.redo, world.check, world.discard, world.lease, world.ends, world.keys)
    target = Target(topics, 0, "unused", Connection(world.cluster.bootstrap).librdkafka(), 60_000)
    shard = Shard(ShardStore(directory, 10_000), target, lambda _: "unused", threading.Event())
    try:
        shard.catch_up()
        words = shard.table.get(np.array([half_offset for _, half_offset in places]))["word"]
    finally:
        shard.close(clean=False)
    return [(State(state_of(int(word))), int(check_count_of(int(word)))) for word in words]


def test_the_pending_count_is_exact_also_when_the_store_is_lost_and_old_places_still_end_19_49_63_64_66(world: KafkaWorld) -> None:
    places = [world.prepare(b"%d" % number, "rebuilt", group="nobody") for number in range(30)]
    for number, place in enumerate(places[:20]):
        world.say(place, "COMMIT" if number < 10 else "ROLLBACK", group="nobody")
    settled(world)
    before = the_books(world)
    world.jobs[-1].kill()
    shutil.rmtree(world.jobs[-1].directory)
    world.start("elsewhere")
    settled(world)  # one half more, committed
    assert the_books(world) == {**before, "prepares": before["prepares"] + 1, "commits": before["commits"] + 1}
    for place in places[:25]:
        world.say(place, "COMMIT", group="nobody")  # again, too late, and now
    world.await_that(lambda: places_in(world, "rebuilt"), lambda found: len(found) == 15)
    settled(world)
    assert places_in(world, "rebuilt") == Counter([*places[:10], *places[20:25]])
    world.advance(73 * 3600)

    def pending_after_another_round() -> float:
        next_round(world)
        return figures(world)["escrow_pending"]

    world.await_that(pending_after_another_round, lambda pending: pending == 0)
    (discard,) = discards_of(world, places[29])
    assert dict(discard.headers())["escrow-reason"] == b"expired"
    assert [len(discards_of(world, place)) for place in places[24:]] == [0, 1, 1, 1, 1, 1]


def the_books(world: KafkaWorld) -> dict[str, float]:
    """Totals of transactions, once all that Kafka has is in them; pending is what they say it is."""
    halves = len(world.cluster.read_all(world.half))
    commits = sum(len(world.released(topic)) for topic in (*TOPICS, "small", "not-yet-there")) + undeliverable(world)
    found = world.await_that(
        lambda: figures(world), lambda found: (found[_total("prepares")], found[_total("commits")]) == (halves, commits)
    )
    names = ("prepares", "resumes", "commits", "rollbacks", "discards_max", "discards_expired", "quarantined")
    totals = {name: found[_total(name)] for name in names}
    assert found["escrow_pending"] == 2 * (totals["prepares"] + totals["resumes"]) - sum(totals.values())
    return {**totals, "pending": found["escrow_pending"]}


def _total(event: str) -> str:
    return f'escrow_transactions_total{{event="{event}"}}'


def undeliverable(world: KafkaWorld) -> float:
    return figures(world)['escrow_kafka_undeliverable{shard="0"}']


def set_topic(world: KafkaWorld, topic: str, name: str, value: str) -> None:
    admin = world.cluster.admin()
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    for done in admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]).values():
        done.result(60)
