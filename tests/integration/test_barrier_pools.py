"""COMMIT is said when a pool has given the connection of the local transaction to another thread."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from psycopg.pq import TransactionStatus

from escrow import Barrier, Message, Outcome, Producer
from tests.support.fake_escrow import FakeEscrow, eventually
from tests.support.postgres import postgres


@pytest.fixture
def cluster():
    with postgres() as running:
        yield running


@pytest.fixture
def escrow():
    with FakeEscrow() as fake:
        yield fake


@pytest.mark.parametrize("busy", [False, True])
def test_commit_after_the_databases_commit_is_said_though_another_user_of_the_pool_writes(cluster, escrow, busy):
    """A pool gives the same connection to the next thread before COMMIT is said. Nothing waits for what that thread runs."""
    barrier, waiting, ended, waited = Barrier(), threading.Event(), threading.Event(), []
    with closing(cluster.connect()) as pooled, closing(cluster.connect()) as other, Producer(escrow.url, "orders") as producer:
        barrier.create_table(pooled)
        other.execute("SELECT pg_advisory_lock(1)")

        def next_user():
            pooled.execute("CREATE TEMPORARY TABLE written ()")
            if busy:
                pooled.execute("SET LOCAL lock_timeout = '20s'")
                waiting.set()
                pooled.execute("SELECT pg_advisory_xact_lock(1)")
                waited.append(ended.is_set())

        def place(message, thread):
            barrier.record(pooled, message.transaction_id)
            pooled.commit()
            thread.start()
            if busy:
                eventually(lambda: waiting.is_set() and pooled.info.transaction_status == TransactionStatus.ACTIVE)
            else:
                thread.join()
            return Outcome.COMMIT

        thread = threading.Thread(target=next_user)
        try:
            assert producer.send_in_transaction(Message("paid", "order"), place, thread).committed
        finally:
            ended.set()
            other.rollback()
            other.execute("SELECT pg_advisory_unlock(1)")
            thread.join()
            pooled.rollback()
    assert waited == [True] * busy
