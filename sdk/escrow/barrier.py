"""The barrier: one row in your own database that tells a check-back how a local transaction ended.

    escrow_barrier (id, state, created_at_ms)      state: committed | rolled_back

The local transaction inserts `committed` among its own changes: the row is there if and only if they are. A check-back that
finds no row may not conclude ROLLBACK from that: the local transaction may be running still, or be about to begin. So it inserts
a row itself, `rolled_back`, and the primary key decides which of the two came first:

| when the check comes, the local transaction | the check's insert | the check answers | the local transaction |
|---|---|---|---|
| has committed | fails: the row exists | COMMIT | stands |
| was rolled back, or never ran | succeeds, is committed | ROLLBACK | fails with AlreadyAnswered if it comes late |
| is running, and has inserted its row | waits for its lock, in vain | UNKNOWN | goes on; Escrow asks again |
| is running, and has not inserted its row | succeeds, is committed | ROLLBACK | fails with AlreadyAnswered |

Insert the row first in the local transaction, so that a check meanwhile waits (third line) instead of ending it (fourth).

Connections: DB-API 2 (sqlite3, psycopg, …), SQLAlchemy's (Connection, Session and their asyncio forms), asyncpg's and psycopg's
asynchronous ones. They are told apart by what they can do; nothing is imported. What must be awaited returns an awaitable:
`await barrier.record(async_session, tx.id)`. All must lead to the database that decides: never to a replica.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from escrow import _open_transactions
from escrow._async_databases import AsyncDriver, is_async, opened_async, runs_sync
from escrow._databases import PLACEHOLDERS, Connect, Connection, Sql, in_transaction, is_integrity, is_lock, opened
from escrow.errors import AlreadyAnswered, BarrierError
from escrow.messages import Check, Outcome

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"

#: The type of `created_at_ms` is the only thing that differs; each database takes the rest as it is.
_DDL: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    id VARCHAR(255) PRIMARY KEY,
    state VARCHAR(16) NOT NULL,
    created_at_ms BIGINT NOT NULL
)"""
#: Databases for which the table is tested. In MySQL the engine must have transactions.
DIALECTS: Final = {"postgresql": "", "mysql": " ENGINE=InnoDB", "sqlite": ""}


class Barrier:
    """Writes and reads barrier rows.

    table           its name, schema included if you like
    lock_timeout_s  how long a check waits for a local transaction that is running, before it answers UNKNOWN
    paramstyle      how your driver writes parameters (DB-API's word for it), where the driver's module does not say
    keep            rows younger than this are never pruned: at least Escrow's fileReservedTime (72 h), within which it may ask
    """

    def __init__(
        self,
        table: str = "escrow_barrier",
        *,
        lock_timeout_s: float = 2.0,
        paramstyle: str | None = None,
        keep: timedelta = timedelta(hours=72),
    ) -> None:
        if not all(part.isidentifier() for part in table.split(".")):
            raise ValueError(f"table: {table!r} is not a plain name; it goes into SQL as it is")
        if paramstyle is not None and paramstyle not in PLACEHOLDERS:
            raise ValueError(f"paramstyle: {paramstyle!r} is not one of {', '.join(PLACEHOLDERS)}")
        self._table, self._lock_timeout_s, self._paramstyle, self._keep = table, lock_timeout_s, paramstyle, keep

    # --- the table --------------------------------------------------------------------------------------------------------
    def ddl(self, dialect: str = "postgresql") -> str:
        """The statement that makes the table, for your migrations: postgresql, mysql or sqlite."""
        if dialect not in DIALECTS:
            raise ValueError(f"dialect: {dialect!r} is not one of {', '.join(DIALECTS)}")
        return _DDL.format(table=self._table) + DIALECTS[dialect]

    def create_table(self, connection: Connection) -> Any:
        """Make the table if it is not there. Committed, unless the connection is in a transaction: that one is yours to commit."""
        if is_async(connection):
            return self._run_async(connection, self._create_table, self._create_table_async)
        return self._create_table(connection)

    def _create_table(self, connection: Connection) -> None:
        is_callers = in_transaction(connection)
        self._sql(connection).run(_DDL.format(table=self._table))
        if not is_callers:
            connection.commit()

    async def _create_table_async(self, driver: AsyncDriver) -> None:
        is_callers = driver.in_transaction()
        await driver.run(_DDL.format(table=self._table))
        if not is_callers:
            await driver.commit()

    # --- for the local transaction ----------------------------------------------------------------------------------------
    def record(self, connection: Connection, id: str) -> Any:
        """Insert the row of this transaction's half, in the transaction that this connection is in. You commit, and then say
        COMMIT: said before, it raises NotCommitted. Await it for a connection that is awaited.

        AlreadyAnswered: a check-back was faster and has answered ROLLBACK. Let the exception roll your transaction back.
        """
        if not id or not isinstance(id, str):
            raise TypeError(f"id: is {id!r}; pass the id of the half: tx.id, or message.transaction_id")
        if is_async(connection):
            return self._run_async(connection, lambda sync: self._record(sync, id), lambda driver: self._record_async(driver, id))
        return self._record(connection, id)

    def _record(self, connection: Connection, id: str) -> None:
        sql = self._sql(connection)
        sql.refuse_autocommit()
        try:
            self._insert(sql, id, COMMITTED)
        except Exception as error:
            if not is_integrity(error):
                raise
            raise self._already_answered(id) from error
        _open_transactions.remember(id, sql.probe())

    async def _record_async(self, driver: AsyncDriver, id: str) -> None:
        driver.refuse_autocommit()
        try:
            await driver.run(self._inserting(), **_row(id, COMMITTED))
        except Exception as error:
            if not is_integrity(error):
                raise
            raise self._already_answered(id) from error
        _open_transactions.remember(id, await driver.probe())

    def _already_answered(self, id: str) -> AlreadyAnswered:
        return AlreadyAnswered(
            f"{self._table} has a row for {id}: a check-back has answered ROLLBACK (or this transaction was recorded twice); "
            "roll the local transaction back"
        )

    @staticmethod
    async def _run_async(
        connection: Any, run_sync: Callable[[Any], Any], run_driver: Callable[[AsyncDriver], Awaitable[Any]]
    ) -> Any:
        """On a connection that is awaited: SQLAlchemy runs what is for threads, a driver what is for it."""
        if runs_sync(connection):
            return await connection.run_sync(run_sync)
        return await run_driver(AsyncDriver(connection))

    # --- for the check ----------------------------------------------------------------------------------------------------
    def listener(self, connect: Connect) -> Callable[[Check], Any]:
        """For `on_check=barrier.listener(connect)`. Where connect() gives something that is awaited, for an AsyncProducer."""
        return lambda check: self.answer(connect, check.id)

    def answer(self, connect: Connect, id: str) -> Any:
        """What became of this transaction: an Outcome, or an awaitable of one. `connect()` gives a connection for this answer
        alone; it is closed here (a context manager, such as a pool's, is entered and left).

        1  insert `rolled_back` and commit: there was no row, and there will be none of the local transaction
        2  there was one: its state is the answer
        3  another transaction may have one, and holds a lock: UNKNOWN
        """
        given = connect()
        if is_async(given):
            return self._answer_async(given, id)
        with opened(given) as connection:
            return self._answer(connection, id)

    def _answer(self, connection: Connection, id: str) -> Outcome:
        sql = self._sql(connection)
        try:
            sql.wait_at_most(self._lock_timeout_s)
            self._insert(sql, id, ROLLED_BACK)  # 1
            connection.commit()
            return Outcome.ROLLBACK
        except Exception as error:
            connection.rollback()
            if is_integrity(error):
                rows = self._sql(connection).run(self._selecting(), id=id)  # 2
                connection.rollback()
                return self._outcome(rows, id)
            if is_lock(error):
                return Outcome.UNKNOWN  # 3
            raise

    async def _answer_async(self, given: Any, id: str) -> Outcome:
        async with opened_async(given) as connection:
            if runs_sync(connection):
                outcome: Outcome = await connection.run_sync(lambda sync: self._answer(sync, id))
                return outcome
            return await self._answer_driver(AsyncDriver(connection), id)

    async def _answer_driver(self, driver: AsyncDriver, id: str) -> Outcome:
        await driver.begin()
        try:
            await driver.run(f"SET LOCAL lock_timeout = {max(1, round(self._lock_timeout_s * 1000))}")
            await driver.run(self._inserting(), **_row(id, ROLLED_BACK))  # 1
            await driver.commit()
            return Outcome.ROLLBACK
        except Exception as error:
            await driver.rollback()
            if is_integrity(error):
                await driver.begin()
                rows = await driver.run(self._selecting(), id=id)  # 2
                await driver.rollback()
                return self._outcome(rows, id)
            if is_lock(error):
                return Outcome.UNKNOWN  # 3
            raise

    def _outcome(self, rows: list[Any], id: str) -> Outcome:
        if not rows:  # it was there a moment ago
            return Outcome.UNKNOWN
        [[state]] = rows
        try:
            return {COMMITTED: Outcome.COMMIT, ROLLED_BACK: Outcome.ROLLBACK}[state]
        except KeyError:
            raise BarrierError(f"{self._table}.state: is {state!r} for {id}; only this class may write the table") from None

    # --- housekeeping -----------------------------------------------------------------------------------------------------
    def prune(self, connection: Connection, older_than: timedelta = timedelta(days=30)) -> int:
        """Delete old rows; how many. Committed, unless the connection is in a transaction. A row that is gone too early makes a
        check-back answer ROLLBACK for what was committed: stay well above Escrow's fileReservedTime, and above the time within
        which an operator may resume a discarded half.
        """
        if older_than < self._keep:
            raise ValueError(
                f"older_than: is {older_than}, and Escrow may still ask about rows younger than {self._keep}; "
                "wait longer, or lower `keep` together with Escrow's fileReservedTime"
            )
        before_ms = _now_ms() - older_than // timedelta(milliseconds=1)
        is_callers = in_transaction(connection)
        statement = f"DELETE FROM {self._table} WHERE created_at_ms < {{before_ms}}"
        count = self._sql(connection).count(statement, before_ms=before_ms)
        if not is_callers:
            connection.commit()
        return count

    def _insert(self, sql: Sql, id: str, state: str) -> None:
        sql.run(self._inserting(), **_row(id, state))

    def _inserting(self) -> str:
        return f"INSERT INTO {self._table} (id, state, created_at_ms) VALUES ({{id}}, {{state}}, {{now_ms}})"

    def _selecting(self) -> str:
        return f"SELECT state FROM {self._table} WHERE id = {{id}}"

    def _sql(self, connection: Connection) -> Sql:
        return Sql(connection, self._paramstyle)


def _row(id: str, state: str) -> dict[str, object]:
    return {"id": id, "state": state, "now_ms": _now_ms()}


def _now_ms() -> int:
    """This machine's clock: only pruning, which is far from precise, looks at it."""
    return time.time_ns() // 1_000_000
