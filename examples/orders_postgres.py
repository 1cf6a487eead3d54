"""An order service on PostgreSQL: an order and its message, both or neither, whatever dies when.

    python examples/orders_postgres.py --dsn $DSN place --customer ada --item tea --count 3
    python examples/orders_postgres.py --dsn $DSN place --customer ada --item tea --crash after-commit
    python examples/orders_postgres.py --dsn $DSN answer        # what a restarted service does: answers check-backs
    python examples/orders_postgres.py ship --count 4             # another service: gets each order that was really placed

`--crash` kills the service at the two worst moments. Killed *before* its database commit, the order is gone, and the check-back's
answer is ROLLBACK: no message. Killed *after* it, the order is there, and the answer is COMMIT: the message goes out, though nobody
was alive to say so. It is the same code that decides: `barrier.record` in the transaction, `barrier.listener` for the check-back.

Needs psycopg 3: pip install "psycopg[binary]". The same with SQLAlchemy: give `barrier.record` a Connection or Session, and
`barrier.listener` the engine's `connect`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from contextlib import closing, suppress
from typing import Any

import psycopg

import escrow

GROUP, TOPIC = "orders", "order-placed"
barrier = escrow.Barrier()


class Orders:
    """The order service: a database, and a producer that answers check-backs from it."""

    def __init__(self, url: str, dsn: str) -> None:
        self._dsn = dsn
        with self.connect() as db:
            db.execute("CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, customer TEXT NOT NULL, item TEXT NOT NULL)")
            barrier.create_table(db)
        # From here on, check-backs are answered: also those about halves that a killed process left behind.
        self._producer = escrow.Producer(url, GROUP, on_check=barrier.listener(self.connect))

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._dsn)

    def place(self, customer: str, item: str, crash: str = "") -> int:
        """One order. When this returns, it is in the database and its message is on its way."""
        message = escrow.Message(TOPIC, json.dumps({"customer": customer, "item": item}), key=customer)
        with self._producer.transaction(message) as tx:  # 1. the half: stored, visible to nobody
            with self.connect() as db:  # 2. the local transaction
                barrier.record(db, tx.id)
                row = db.execute("INSERT INTO orders (customer, item) VALUES (%s, %s) RETURNING id", (customer, item)).fetchone()
                die_if(crash == "before-commit")
            die_if(crash == "after-commit")
        # 3. leaving the block said COMMIT: the message is released
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        self._producer.close()


def die_if(wanted: bool) -> None:
    """As a power failure would: nothing is cleaned up."""
    if wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def ship(url: str, count: int) -> None:
    """Another service: prints the orders that were really placed."""
    with escrow.Consumer(url, TOPIC, "shipping") as consumer:
        for number, message in enumerate(consumer, 1):
            order = json.loads(message.body)
            print(f"ship {order['item']} to {order['customer']}", flush=True)
            if number == count:
                message.ack()
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7480")
    parser.add_argument("--dsn", default="dbname=shop", help="of the PostgreSQL database")
    commands = parser.add_subparsers(dest="command", required=True)
    place = commands.add_parser("place", help="place orders")
    place.add_argument("--customer", required=True)
    place.add_argument("--item", required=True)
    place.add_argument("--count", type=int, default=1)
    place.add_argument("--crash", choices=["before-commit", "after-commit"], default="", help="die in the middle of the first one")
    commands.add_parser("answer", help="answer check-backs until Ctrl-C")
    commands.add_parser("ship", help="print the orders that arrive").add_argument(
        "--count", type=int, default=0, help="0: for ever"
    )
    arguments = parser.parse_args()
    if arguments.command == "ship":
        ship(arguments.url, arguments.count)
        return
    with closing(Orders(arguments.url, arguments.dsn)) as orders:
        if arguments.command == "answer":
            print("answering check-backs", flush=True)
            threading.Event().wait()
        for _ in range(arguments.count):
            print(f"order {orders.place(arguments.customer, arguments.item, arguments.crash)} placed", flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
