"""A producer that speaks to Kafka alone: no endpoint, no SDK, only kafka-python and the headers of docs/kafka.md.

    python examples/kafka_producer.py --bootstrap 127.0.0.1:9092 --orders orders.db

It stores orders in SQLite, each with a message. About one of them it says nothing (`--forget`), as if it had crashed: the check
request comes by Kafka, and the answer is what the database says.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

GROUP, TOPIC = "orders", "paid"


class DirectProducer:
    """Halves, ends and answers as records."""

    def __init__(self, bootstrap: str, half_topic: str, op_topic: str) -> None:
        self._half_topic, self._op_topic = half_topic, op_topic
        # Idempotence needs acks=all; kafka-python turns both on together.
        self._kafka: Any = KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")

    def half(self, body: bytes, key: str) -> tuple[int, int]:
        """The half is safe when this returns: (partition, half offset) is its place."""
        headers = [("escrow-group", GROUP.encode()), ("escrow-topic", TOPIC.encode())]
        headers.append(("escrow-born-time", str(int(time.time() * 1000)).encode()))
        done = self._kafka.send(self._half_topic, key=key.encode(), value=body, headers=headers).get(60)
        return done.partition, done.offset

    def end(self, place: tuple[int, int], outcome: str, via: str = "producer") -> None:
        """An op goes to the partition of its half."""
        partition, half_offset = place
        headers = {"escrow-op": outcome, "escrow-half-offset": str(half_offset), "escrow-group": GROUP, "escrow-via": via}
        encoded = [(name, value.encode()) for name, value in headers.items()]
        self._kafka.send(self._op_topic, partition=partition, value=b"", headers=encoded).get(60)

    def close(self) -> None:
        self._kafka.close()


class Orders:
    """The local transaction: one row an order."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with self._transaction() as database:
            database.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT NOT NULL)")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=30)) as database, database:
            yield database

    def place(self, order: str) -> None:
        """IntegrityError where a check was answered ROLLBACK before we came to it."""
        with self._transaction() as database:
            database.execute("INSERT INTO orders VALUES (?, 'placed')", (order,))

    def outcome(self, order: str) -> str:
        """What became of it. "Nothing" is made final first: the row that is left here keeps a slow `place` from being too late."""
        with self._transaction() as database:
            database.execute("INSERT OR IGNORE INTO orders VALUES (?, 'rolled back')", (order,))
            [state] = database.execute("SELECT state FROM orders WHERE id = ?", (order,)).fetchone()
        return "COMMIT" if state == "placed" else "ROLLBACK"


def answer_checks(producer: DirectProducer, orders: Orders, consumer: Any, until_s: float) -> None:
    """While this runs the group is live. Requests of other groups lie in the same topic: they are passed over."""
    while time.monotonic() < until_s:
        for records in consumer.poll(timeout_ms=200).values():
            for record in records:
                if record.key != GROUP.encode():
                    continue
                headers = dict(record.headers)
                place = int(headers["escrow-half-partition"]), int(headers["escrow-half-offset"])
                outcome = orders.outcome(record.value.decode())
                producer.end(place, outcome, via="check")
                print(f"asked about {record.value.decode()}: {outcome}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--orders", type=Path, default=Path("orders.db"))
    parser.add_argument("--half-topic", default="RMQ_SYS_TRANS_HALF_TOPIC")
    parser.add_argument("--op-topic", default="RMQ_SYS_TRANS_OP_HALF_TOPIC")
    parser.add_argument("--check-topic", default="ESCROW_CHECK_TOPIC")
    parser.add_argument("--check-group-prefix", default="escrow-check-")
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--forget", action="store_true", help="say nothing about the last order: it will be asked about")
    parser.add_argument("--answer-for", type=float, default=0.0, metavar="SECONDS", help="stay and answer check requests")
    args = parser.parse_args()

    producer, orders = DirectProducer(args.bootstrap, args.half_topic, args.op_topic), Orders(args.orders)
    for number in range(args.count):
        order = f"order-{number}"
        place = producer.half(order.encode(), key=order)  # 1. the message, seen by nobody
        orders.place(order)  # 2. the local transaction
        if args.forget and number == args.count - 1:
            print(f"{order} is at {place}, and nothing is said of it", flush=True)
        else:
            producer.end(place, "COMMIT")  # 3. its outcome
            print(f"{order} is committed", flush=True)
    if args.answer_for:
        consumer: Any = KafkaConsumer(
            bootstrap_servers=args.bootstrap, group_id=args.check_group_prefix + GROUP,
            isolation_level="read_committed", auto_offset_reset="earliest",
        )  # fmt: skip
        # A member that joins before it knows the topic's partitions is given none, and waits for minutes.
        while not consumer.partitions_for_topic(args.check_topic):
            time.sleep(0.2)
        consumer.subscribe([args.check_topic])
        answer_checks(producer, orders, consumer, time.monotonic() + args.answer_for)
        consumer.close()
    producer.close()


if __name__ == "__main__":
    main()
