"""The barrier on connections that are awaited, against a real PostgreSQL: SQLAlchemy's, asyncpg's and psycopg's."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from escrow import AlreadyAnswered, AsyncProducer, Barrier, Message, NotCommitted, NotInTransaction, Outcome, Producer
from tests.support.fake_escrow import FakeEscrow, eventually
from tests.support.postgres import postgres

KINDS = ["alchemy-asyncpg", "alchemy-asyncpg-session", "alchemy-psycopg", "alchemy-psycopg-session", "asyncpg", "psycopg"]


@pytest.fixture(scope="module")
def cluster():
    with postgres() as running:
        yield running


@pytest.fixture
def escrow():
    with FakeEscrow() as fake:
        yield fake


class Database:
    """One way to connect, with a fresh table, in one event loop."""

    def __init__(self, kind: str, cluster: Any) -> None:
        self.kind, self.cluster, self.barrier = kind, cluster, Barrier(lock_timeout_s=0.2)
        self.url = f"postgresql+{kind.split('-')[1]}://escrow@127.0.0.1:{cluster.port}/postgres" if "-" in kind else ""

    def connect(self) -> Any:
        if self.kind == "asyncpg":
            return asyncpg.connect(host="127.0.0.1", port=self.cluster.port, user="escrow", database="postgres")
        if self.kind == "psycopg":
            return psycopg.AsyncConnection.connect(self.cluster.dsn)
        return AsyncSession(self.engine) if self.kind.endswith("session") else self.engine.connect()

    @asynccontextmanager
    async def opened(self):
        given = self.connect()
        if self.url:
            async with given as connection:
                yield connection
            return
        connection = await given
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def begun(self):
        """A connection in a transaction, and what commits it."""
        async with self.opened() as connection:
            if self.kind == "asyncpg":
                transaction = connection.transaction()
                await transaction.start()
                yield connection, transaction.commit
            else:
                yield connection, connection.commit

    def run(self, scene):
        async def main():
            async with asyncio.timeout(120):
                if self.url:
                    self.engine = create_async_engine(self.url)
                async with self.opened() as connection:
                    await self.barrier.create_table(connection)
                    await self.barrier.create_table(connection)  # again: nothing happens
                try:
                    await scene()
                finally:
                    if self.url:
                        await self.engine.dispose()

        with self.cluster.connect(autocommit=True) as plain:
            plain.execute("DROP TABLE IF EXISTS escrow_barrier")
        asyncio.run(main())

    def rows(self):
        with self.cluster.connect() as plain:
            return plain.execute("SELECT id, state FROM escrow_barrier ORDER BY id").fetchall()


@pytest.fixture(params=KINDS)
def database(request, cluster):
    return Database(request.param, cluster)


def test_a_committed_transaction_is_a_commit_and_a_running_one_is_unknown(database):
    async def scene():
        async with database.begun() as (local, commit):
            await database.barrier.record(local, "tx-1")
            assert await database.barrier.answer(database.connect, "tx-1") is Outcome.UNKNOWN
            await commit()
        for _ in range(2):
            assert await database.barrier.answer(database.connect, "tx-1") is Outcome.COMMIT

    database.run(scene)
    assert database.rows() == [("tx-1", "committed")]


def test_a_transaction_that_never_ran_is_a_rollback_and_cannot_run_later(database):
    async def scene():
        for _ in range(2):
            assert await database.barrier.answer(database.connect, "tx-1") is Outcome.ROLLBACK
        async with database.begun() as (late, _):
            with pytest.raises(AlreadyAnswered, match="tx-1"):
                await database.barrier.record(late, "tx-1")

    database.run(scene)
    assert database.rows() == [("tx-1", "rolled_back")]


def test_the_table_is_made_in_the_callers_transaction(database):
    """Not committed before the caller says so."""

    async def scene():
        with database.cluster.connect(autocommit=True) as plain:
            plain.execute("DROP TABLE escrow_barrier")
        async with database.begun() as (local, _):
            if database.kind == "psycopg":
                await local.execute("SELECT 1")
            elif database.url:
                await local.run_sync(lambda sync: sync.connection() if hasattr(sync, "get_bind") else sync.begin())
            await database.barrier.create_table(local)
        with database.cluster.connect() as plain:
            assert plain.execute("SELECT to_regclass('escrow_barrier')").fetchone() == (None,)

    database.run(scene)


def test_commit_before_the_databases_commit_is_refused(database, escrow):
    """As with a session that a framework commits after the handler. The message stays in doubt, and check-back finds the truth."""

    async def scene():
        async with AsyncProducer(escrow.url, "orders", on_check=database.barrier.listener(database.connect)) as producer:

            async def handler(local, commit, early):
                async with producer.transaction(Message("paid", "order")) as tx:
                    await database.barrier.record(local, tx.id)
                    if not early:
                        await commit()
                return tx.id

            async with database.begun() as (local, commit):
                await handler(local, commit, early=False)
            async with database.begun() as (local, commit):
                with pytest.raises(NotCommitted, match="is still open"):
                    await handler(local, commit, early=True)
            [right, wrong] = escrow.halves
            assert escrow.halves[right].state == "COMMITTED"
            await asyncio.to_thread(escrow.until, lambda: escrow.halves[wrong].ends)
            assert [end["outcome"] for end in escrow.halves[wrong].ends] == ["unknown"]
            escrow.ask(wrong)
            await asyncio.to_thread(escrow.until, lambda: escrow.halves[wrong].state == "ROLLED_BACK")

    database.run(scene)


def test_a_transaction_that_only_reads_may_be_open_when_commit_is_said(database, escrow):
    async def scene():
        async with AsyncProducer(escrow.url, "orders") as producer, database.begun() as (local, commit):
            async with producer.transaction(Message("paid", "order")) as tx:
                await database.barrier.record(local, tx.id)
                await commit()
                if database.kind == "psycopg":
                    await local.execute("SELECT 1")
                elif database.url:
                    await local.run_sync(lambda sync: sync.connection() if hasattr(sync, "get_bind") else sync.begin())
            assert tx.result is not None
            assert tx.result.committed

    database.run(scene)


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "alchemy-asyncpg"])
def test_autocommit_is_refused(cluster, kind):
    database = Database(kind, cluster)

    async def scene():
        async with database.opened() as connection:
            if kind == "psycopg":
                await connection.set_autocommit(True)
            elif kind == "alchemy-asyncpg":
                await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(NotInTransaction):
                await database.barrier.record(connection, "tx-1")

    database.run(scene)
    assert database.rows() == []


def test_what_cannot_be_taken_is_refused_in_words():
    class Strange:
        async def execute(self):
            """Looks as if it had to be awaited."""

    with pytest.raises(TypeError, match=r"connection: is a .*Strange; pass SQLAlchemy's"):
        asyncio.run(Barrier().record(Strange(), "tx-1"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # asyncpg's coroutine is not awaited either
def test_a_producer_of_threads_says_that_it_cannot_await(cluster, escrow, caplog):
    database = Database("asyncpg", cluster)
    with Producer(escrow.url, "orders", on_check=database.barrier.listener(database.connect)) as producer:
        half = producer.send_half(Message("paid", "order"))
        escrow.ask(half.id)
        eventually(lambda: escrow.halves[half.id].ends)
    assert "use an escrow.AsyncProducer" in escrow.halves[half.id].ends[0]["remark"]
