"""After a campaign and a clean stop: the database row and the released message agree, for every order of every run.

1  barrier rows: `committed` if and only if the order's row is there; none speaks of two orders
2  halves: at most one for an order, whatever was repeated; each has ended; what its barrier row says, and what its producer heard
3  an order's row is there if and only if its message is released: once, at one place, byte for byte as it was meant
4  what consumers got over HTTP is what is released, place by place: all of it, and nothing else
5  `verify` finds nothing
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from store.inspect.verify.store import verify
from store.read.readers import open_readers
from store.records import State, state_of
from tests.campaigns.chaos_ingest.plan import TOPICS, Order
from tests.campaigns.chaos_ingest.run import Ledger
from tests.support.service import read_topic

#: (topic, queue_id, queue_offset)
Where = tuple[str, int, int]


@dataclass(slots=True)
class Books:
    """What the databases say."""

    #: order → transaction id, of rows that are there
    rows: dict[str, str] = field(default_factory=dict)
    #: transaction id → state of the barrier row
    barrier: dict[str, str] = field(default_factory=dict)


def read_books(databases: Sequence[Path]) -> Books:
    books = Books()
    for path in databases:
        with closing(sqlite3.connect(path)) as db:
            for ident, half_id in db.execute("SELECT ident, half_id FROM orders"):
                assert ident not in books.rows, f"two databases have order {ident}"
                books.rows[ident] = half_id
            books.barrier.update(db.execute("SELECT id, state FROM escrow_barrier").fetchall())
    return books


def audit(
    store: Path, databases: Sequence[Path], orders: dict[str, Order], ledger: Ledger, consumed: dict[Where, str]
) -> dict[str, int]:
    """Steps 1 to 5; figures. AssertionError says what is not true."""
    assert not ledger.problems, f"{len(ledger.problems)} problems, the first: {ledger.problems[0]}"
    books = read_books(databases)
    _check_barrier(books)  # 1
    states = _half_states(store, orders)
    _check_halves(books, ledger, states)  # 2
    found = [message for topic in TOPICS for message in read_topic(store, topic)]
    released = {(message.topic, message.queue_id, message.queue_offset): message.body.decode() for message in found}
    _check_released(books, orders, released)  # 3
    for place in released.keys() | consumed.keys():  # 4
        assert place in consumed, f"no consumer got {released[place][:40]} at {place}"
        assert place in released, f"a consumer got {consumed[place][:40]} at {place}, where nothing is"
        assert consumed[place] == released[place], f"a consumer got {consumed[place][:40]} at {place}: it is {released[place][:40]}"
    report = verify(store)  # 5
    assert not report.problems, f"verify: {len(report.problems)} problems, the first: {report.problems[0]}"
    counted = Counter(states.values())
    return {
        "orders": len(orders),
        "halves": len(states),
        "committed": counted[State.COMMITTED],
        "rolled_back": counted[State.ROLLED_BACK],
        "released": len(released),
        "barrier_rows": len(books.barrier),
    }


def _check_barrier(books: Books) -> None:
    owners = {half_id: ident for ident, half_id in books.rows.items()}
    assert len(owners) == len(books.rows), "two orders have one transaction"
    for half_id, ident in owners.items():
        state = books.barrier.get(half_id)
        assert state == "committed", f"order {ident} is there, and its barrier row says {state}"
    for half_id, state in books.barrier.items():
        assert state != "committed" or half_id in owners, f"barrier row {half_id} says committed, and there is no order"


def _half_states(store: Path, orders: dict[str, Order]) -> dict[str, State]:
    """order → state of its half."""
    _, log, topics, _ = open_readers(store)
    assert topics is not None
    try:
        half_end, _ = log.ends()
        words = topics.rows(np.arange(half_end))["word"]
        found: dict[str, State] = {}
        for half_offset, entry in enumerate(log.half_queue.read(0, half_end)):
            body = log.frame(entry).body.decode()
            ident = body.partition(" ")[0]
            assert ident in orders, f"half {half_offset} is of nobody's order: {body[:40]}"
            assert body == orders[ident].body, f"half {half_offset} is not what was sent for order {ident}: {body[:40]}"
            assert ident not in found, f"order {ident} has two halves"
            found[ident] = State(int(state_of(int(words[half_offset]))))
        return found
    finally:
        log.close()
        topics.close()


def _check_halves(books: Books, ledger: Ledger, states: dict[str, State]) -> None:
    for ident, state in states.items():
        assert state in (State.COMMITTED, State.ROLLED_BACK), f"order {ident}: its half is {state.name}"
        assert (state is State.COMMITTED) == (ident in books.rows), f"order {ident}: {state.name}, row: {ident in books.rows}"
    for half_id, said in books.barrier.items():
        ident = ledger.orders_of[half_id]
        state = {"committed": State.COMMITTED, "rolled_back": State.ROLLED_BACK}[said]
        assert states.get(ident) is state, f"order {ident}: its half is {states.get(ident)}, its barrier row says {said}"
    for ident, heard in ledger.heard.items():
        assert states.get(ident) is heard, f"order {ident}: its producer heard {heard.name}, it is {states.get(ident)}"


def _check_released(books: Books, orders: dict[str, Order], released: dict[Where, str]) -> None:
    times = Counter(body.partition(" ")[0] for body in released.values())
    for ident in books.rows:
        assert times[ident] == 1, f"order {ident} is in the database, and its message was released {times[ident]} times"
    for (topic, *_), body in released.items():
        order = orders[body.partition(" ")[0]]
        assert order.ident in books.rows, f"order {order.ident} is not in the database, and its message was released"
        assert (topic, body) == (order.topic, order.body), f"order {order.ident}: released otherwise than sent: {topic} {body[:40]}"
