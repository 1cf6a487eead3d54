"""Which process may write a shard: transactional ids, fencing and claims.

Kafka gives a transactional id to one producer; `init_transactions` fences the one that had it before. A claim in the
redo partition starts a new term: tasks of earlier terms find it and stop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, Producer

from sinks.kafka import redo
from sinks.kafka.bodies import Bodies
from sinks.kafka.reach import KnownTopics
from sinks.kafka.task import DEADLINE_S, Superseded, Target, Task, Untaken

#: A transactional id that cannot be taken within this time may be stuck at a partition that takes no writes
#: (sinks/kafka/stuck.py).
TAKE_S: Final = 5.0
#: Messages of one request. When one of them is bad, Kafka refuses all, and each is then sent alone.
BATCH_MESSAGES_MAX: Final = 1_000


@dataclass(slots=True)
class Owner:
    """This process's hold on a transactional id, and the clients that go with it."""

    producer: Producer
    bodies: Bodies
    sequence: int  # of the last batch that it knows to be committed
    packs: bool = False  # the producer compresses
    topics: KnownTopics = field(default_factory=dict)
    used_s: float = 0.0


class Claimed(NamedTuple):
    """A shard that was taken over, and where its last batch is."""

    term: int
    sequence: int
    generation: int


def fence(task: Task, *, packs: bool = False) -> tuple[Producer, int]:
    """Steps 1 and 2 of a release: a producer that alone can write, and the sequence of the shard's last batch."""
    target = task.target
    producer = make_producer(target, packs=packs)
    try:
        producer.init_transactions(TAKE_S)  # 1
    except KafkaException as error:
        raise Untaken(f"shard {target.partition}: {target.producer_id}: {error.args[0].str()}") from error
    last = _last(target)  # 2
    if last.term > task.term:
        raise Superseded(f"shard {target.partition} belongs to term {last.term}, this is term {task.term}")
    return producer, last.sequence


def claim(
    target: Target, owner: str, at_ms: int, known_term: int, is_stuck: Callable[[str], bool] = lambda _: False
) -> Claimed:  # fmt: skip
    """Take a shard over. Terms go up even where retention has deleted the last claim. Steps:

    1  take the id; where Kafka cannot give it to any producer (`is_stuck`), take the next one
    2  read the redo partition, write the claim
    3  fence every id that was left, then look which batch was written last
    """
    target = replace(target, generation=max(target.generation, _last(target).generation))
    left: list[Target] = []
    while (producer := _taken(target, is_stuck)) is None:  # 1
        left.append(target)
        target = replace(target, generation=target.generation + 1)
    last = _last(target)  # 2
    if last.generation > target.generation:  # another driver was faster
        return claim(replace(target, generation=last.generation), owner, at_ms, known_term, is_stuck)
    term = max(last.term, known_term) + 1
    headers, value = redo.claim_record(term, owner, at_ms, target.generation)
    producer.begin_transaction()
    producer.produce(target.topics.redo, value, partition=target.partition, headers=list(headers))
    producer.commit_transaction(DEADLINE_S)
    for old in left:  # 3
        _taken(old, is_stuck)
    return Claimed(term, _last(target).sequence if left else last.sequence, target.generation)


def make_producer(target: Target, *, packs: bool = False) -> Producer:
    """A transactional producer for the shard.

    Keys choose partitions as in Java's clients. The broker judges the size of what it is sent, so a half that came
    compressed may fit only if it leaves compressed (`packs`).
    """
    options = {
        "compression.type": "zstd" if packs else "none",
        "transactional.id": target.producer_id,
        "transaction.timeout.ms": target.transaction_timeout_ms,
        "partitioner": "murmur2_random",
        "message.max.bytes": 1_000_000_000,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1 << 18,
        # Adds no delay: a flush sends at once. With 5 the client's thread looks at its queues at every turn, which
        # takes 2.8 instead of 0.9 µs of processor time a message.
        "linger.ms": 500,
        "batch.size": 1 << 20,
        "batch.num.messages": BATCH_MESSAGES_MAX,
        "delivery.report.only.error": True,
        # By default a client connects to a broker when it has something for it, and one that finds its coordinator not
        # connected yet looks again after half a second.
        "enable.sparse.connections": False,
    }
    return Producer({**target.client, **options})


def _last(target: Target) -> redo.Last:
    return redo.last_of(target.client, target.topics.redo, target.partition, DEADLINE_S)


def _taken(target: Target, is_stuck: Callable[[str], bool]) -> Producer | None:
    """The id's producer; the one that had the id before is fenced. None where Kafka cannot give it to any producer."""
    producer, give_up_s = make_producer(target), time.monotonic() + DEADLINE_S
    while True:
        try:
            producer.init_transactions(TAKE_S)
            return producer
        except KafkaException as error:
            if is_stuck(target.producer_id):
                return None
            if not error.args[0].retriable() or time.monotonic() > give_up_s:
                raise
