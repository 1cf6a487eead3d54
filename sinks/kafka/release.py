"""One batch of one shard in one Kafka transaction: what a task on an executor does (docs/kafka.md, "exactly once").

Everything that is written follows from the batch's redo entries (sinks/kafka/transaction.py). Steps of `run`:
    1  init_transactions: no other producer can write under this transactional id any more
    2  read the end of the redo partition: was the batch written, does the shard belong to another driver?
    3  begin, bodies and effects, flush; where Kafka refuses messages, or a topic does not answer: abort, and again
       without them
    4  redo records, commit; where the batch's check requests lie is looked up for the driver
A process that wrote the batch before this one begins at 3: if another process wrote in between, Kafka fences this one.
After any failure the producer is thrown away: the next attempt begins at 1, and 2 decides what became of a commit whose
answer was lost.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Final

import numpy as np
from confluent_kafka import KafkaException, TopicPartition

from sinks.kafka import ownership, redo
from sinks.kafka.bodies import Bodies
from sinks.kafka.gc_pause import no_collector
from sinks.kafka.ownership import Owner
from sinks.kafka.reach import unwritable
from sinks.kafka.refusals import UNEXPLAINED, Known
from sinks.kafka.sender import RefusedByKafka, Stalled
from sinks.kafka.task import DEADLINE_S, SUPERSEDED, UNTAKEN, Done, Superseded, Task, Untaken, Unwritten
from sinks.kafka.transaction import Attempt
from store.tables.redo_log import REDO

ATTEMPTS_MAX: Final = 3
#: A shard that had no task here for this long stops reading ahead: its tasks may go to another process now.
REST_AFTER_S: Final = 2.0

#: By transactional id and term: what this process holds. It lives as long as Spark's worker process.
_owners: dict[str, Owner] = {}


def run(task: Task) -> Done:
    """Write a batch unless it was written; raise Superseded where the shard belongs to another driver."""
    key = f"{task.target.producer_id}/{task.term}"
    for attempt in range(ATTEMPTS_MAX):
        try:
            owner = _owners.get(key)
            if owner is None or owner.sequence != task.marker.sequence - 1:  # another process has written since
                owner = _take(task, key)
            if owner.sequence >= task.marker.sequence:
                return Done(task.target.partition, task.marker.sequence, written=False)
            done = _write(owner, task)
            owner.sequence = max(owner.sequence, task.marker.sequence)
            _rest(key, TopicPartition(task.target.topics.half, task.target.partition))
            return done
        except Untaken:
            _forget(key)
            raise
        except (KafkaException, SystemError) as error:  # SystemError: fenced while it sent
            _forget(key)
            if attempt + 1 == ATTEMPTS_MAX:
                raise Unwritten(f"shard {task.target.partition}, batch {task.marker.sequence}: {error}") from error
        except BaseException:
            _forget(key)
            raise
    raise AssertionError("unreachable")


def attempt(task: Task) -> Done | str:
    """`run`, with failures as text: Spark would repeat a task that raises, but the driver decides about that."""
    try:
        with no_collector():
            return replace(run(task), executor=f"{socket.gethostname()}/{os.getppid()}")
    except Superseded as error:
        return f"{SUPERSEDED}{error}"
    except Untaken as error:
        return f"{UNTAKEN}{error}"
    except Unwritten as error:
        return str(error)
    except KafkaException as error:
        return f"Kafka: {error.args[0].str()}"


def _rest(used: str, half: TopicPartition) -> None:
    """After a task, stop read-ahead that serves no task. The batch is written, whatever goes wrong here."""
    now_s = _owners[used].used_s = time.monotonic()
    for key, owner in list(_owners.items()):
        try:
            if owner.bodies.is_near_end(half) if key == used else owner.used_s < now_s - REST_AFTER_S:
                owner.bodies.rest()
        except KafkaException:
            _forget(key)


def _forget(key: str) -> None:
    owner = _owners.pop(key, None)
    if owner is not None:
        owner.bodies.close()


def _take(task: Task, key: str) -> Owner:
    """Steps 1 and 2."""
    target = task.target
    for other in [other for other in _owners if other.startswith(f"{target.producer_id}/")]:
        _forget(other)
    producer, sequence = ownership.fence(task)
    owner = _owners[key] = Owner(producer, Bodies(target.client), sequence)
    return owner


def _write(owner: Owner, task: Task) -> Done:
    """Steps 3 and 4."""
    entries = redo.unpack_entries(task.packed_entries) if task.packed_entries else np.empty(0, REDO)
    refused: dict[int, str] = {}
    singly: set[int] = set()
    knows = Known(task.marker.now_ms, task.barred)
    while True:
        trying = Attempt(owner, task, refused, singly, knows)
        sender = trying.sender
        trying.look_where_requests_begin(entries)
        owner.producer.begin_transaction()
        try:
            trying.effects(entries)  # 3
            sender.flush()
            if not sender.failed:
                break
        except (RefusedByKafka, Stalled):
            pass
        except KafkaException as error:
            # Where Escrow may not write to one topic, nothing of the transaction is sent, and no report says why.
            if error.args[0].code() not in UNEXPLAINED or not knows.bar(unwritable(task.target.client, owner.topics)):
                raise
        if sender.failed or sender.stalled:  # otherwise Kafka knows of no transaction, and aborting one is an error
            sender.judge(packs=owner.packs)
            owner.producer.abort_transaction(DEADLINE_S)
        # After a refusal the client's sequence numbers have a gap, which the broker rejects: a new client, from step 1.
        owner.packs = owner.packs or knows.packs
        owner.producer, owner.sequence = ownership.fence(task, packs=owner.packs)
        if owner.sequence >= task.marker.sequence:
            return Done(task.target.partition, task.marker.sequence, written=False)
    trying.redo(entries)  # 4
    owner.producer.commit_transaction(DEADLINE_S)
    sent, requests = (sender.messages, sender.bytes), trying.requested(entries)
    return Done(task.target.partition, task.marker.sequence, True, *sent, barred=knows.barred, requests=requests)
