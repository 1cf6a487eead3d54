"""The producer of a run, as a real program with the SDK: `python -m tests.campaigns.chaos_ingest.producer URL GROUP DATABASE
LIFE.json`.

Works on its orders, then stays and answers check-backs from the barrier until its stdin is closed. It tells what it does on stdout,
one JSON line an event, each in one write, so that a SIGKILL loses nothing that was told. At the point that its life names it kills
itself, for good: SIGKILL. (At the points of the proxy, and at `any`, others do.)
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import escrow
from escrow import Barrier, Check, Message, Outcome
from tests.campaigns.chaos_ingest.plan import Life, Order

#: A check waits this long for a local transaction that is running.
LOCK_TIMEOUT_S = 0.3
#: A slow local transaction goes on after this long, asked or not.
SLOW_MAX_S = 30.0


class Failed(Exception):
    """What a local transaction raises on purpose."""


def connect(database: str) -> sqlite3.Connection:
    return sqlite3.connect(database, timeout=60)


def make_database(database: str, barrier: Barrier) -> None:
    db = connect(database)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE orders (ident TEXT PRIMARY KEY, half_id TEXT NOT NULL UNIQUE)")
    barrier.create_table(db)
    db.close()


def tell(event: str, **rest: Any) -> None:
    os.write(1, json.dumps({"event": event, **rest}).encode() + b"\n")


class Shop:
    """The service: an orders table, a barrier, a producer."""

    def __init__(self, url: str, group: str, database: str, life: Life) -> None:
        self._database, self._life = database, life
        self._barrier = Barrier(lock_timeout_s=LOCK_TIMEOUT_S)
        self._answer = self._barrier.listener(lambda: connect(database))
        self._running: set[str] = set()
        self._asked: dict[str, threading.Event] = defaultdict(threading.Event)
        self._producer = escrow.Producer(
            url, group, on_check=self._on_check, timeout_s=3.0, retry_for_s=90.0, check_wait_s=3.0, check_threads=2
        )

    def work(self) -> None:
        with ThreadPoolExecutor(self._life.threads) as pool:
            for each in [pool.submit(self._transact, order) for order in self._life.orders]:
                each.result()

    def close(self) -> bool:
        return self._producer.close(30.0)

    # --- checks -----------------------------------------------------------------------------------------------------------
    def _on_check(self, check: Check) -> Outcome:
        tell("check", order=check.key, id=check.id)
        running = check.id in self._running
        outcome = self._answer(check)
        tell("answer", order=check.key, outcome=str(outcome), running=running and check.id in self._running)
        self._asked[check.id].set()
        return outcome

    # --- one order --------------------------------------------------------------------------------------------------------
    def _transact(self, order: Order) -> None:
        """Send, work, end; what is raised on purpose is expected, what the barrier or the network does is told."""
        self._reach("before_half", order)
        tell("begin", order=order.ident)
        message = Message(order.topic, order.body, key=order.ident)
        try:
            result = self._in_block(message, order) if order.block else self._in_call(message, order)
        except Failed:
            tell("raised", order=order.ident)
        except escrow.AlreadyAnswered:
            tell("overtaken", order=order.ident)
        except escrow.NotEnded as error:
            tell("problem", order=order.ident, text=repr(error))
        except escrow.EscrowError as error:
            tell("not sent", order=order.ident, text=repr(error))
        else:
            stands = result.answer is not None and result.answer.stands
            tell("end", order=order.ident, outcome=str(result.outcome), stands=stands)
            self._reach("after_end", order)

    def _in_call(self, message: Message, order: Order) -> escrow.TransactionResult:
        return self._producer.send_in_transaction(message, lambda sent, given: self._local(sent.transaction_id, given), order)

    def _in_block(self, message: Message, order: Order) -> escrow.TransactionResult:
        with self._producer.transaction(message) as tx:
            outcome = self._local(tx.id, order)
            if outcome is Outcome.ROLLBACK:
                tx.rollback("on purpose")
            elif outcome is Outcome.UNKNOWN:
                tx.unknown("on purpose")
        assert tx.result is not None
        return tx.result

    def _local(self, id: str, order: Order) -> Outcome:
        """The local transaction."""
        tell("half", order=order.ident, id=id)
        self._reach("after_half", order)
        self._running.add(id)
        try:
            if order.habit == "slow_open":
                self._last_until_asked(id, order)
            committed = self._change(id, order)
        finally:
            self._running.discard(id)
        if not committed:
            return Outcome.ROLLBACK
        self._reach("after_commit", order)
        if order.habit == "raise_late":
            raise Failed
        return Outcome.UNKNOWN if order.habit == "unknown" else Outcome.COMMIT

    def _change(self, id: str, order: Order) -> bool:
        """What the order does to the database; whether it was committed."""
        db = connect(self._database)
        try:
            db.execute("BEGIN IMMEDIATE")
            self._barrier.record(db, id)
            db.execute("INSERT INTO orders VALUES (?, ?)", (order.ident, id))
            if order.habit == "slow_held":
                self._last_until_asked(id, order)
            self._reach("in_local", order)
            if order.habit == "raise":
                raise Failed
            if order.habit == "rollback":
                db.rollback()
                return False
            db.commit()
            return True
        finally:
            db.close()

    def _last_until_asked(self, id: str, order: Order) -> None:
        tell("slow", order=order.ident, asked=self._asked[id].wait(SLOW_MAX_S))

    def _reach(self, point: str, order: Order) -> None:
        if self._life.point == point and self._life.victim == order.ident:
            tell("kill", order=order.ident, point=point)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    url, group, database, given = sys.argv[1:]
    told = json.loads(Path(given).read_text())
    life = Life(**{**told, "orders": tuple(Order(**order) for order in told["orders"])})
    shop = Shop(url, group, database, life)
    shop.work()
    tell("worked")
    sys.stdin.read()
    return 0 if shop.close() else 1


if __name__ == "__main__":
    sys.exit(main())
