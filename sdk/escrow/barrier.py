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

Connections: DB-API 2 (sqlite3, psycopg, …) and SQLAlchemy's (Connection, Session), told apart by what they can do; nothing
is imported. All must lead to the database that decides: never to a replica.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from escrow.errors import AlreadyAnswered, BarrierError, NotInTransaction
from escrow.messages import Check, Outcome

#: DB-API connections have no common type that could be named.
Connection = Any
Connect = Callable[[], Any]

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"

#: How a driver writes the parameter `{name}` with the number `{number}`.
_PLACEHOLDERS: Final = {"qmark": "?", "format": "%s", "pyformat": "%({name})s", "named": ":{name}", "numeric": ":{number}"}
_BY_NAME: Final = ("pyformat", "named")
#: Errors that say "another transaction holds this row": lock_not_available, query_canceled, deadlock, serialization.
_LOCK_SQLSTATES: Final = frozenset({"55P03", "57014", "40P01", "40001"})
#: The same in MySQL and MariaDB: lock wait timeout, deadlock, nowait.
_LOCK_ERRNOS: Final = frozenset({1205, 1213, 3572})
#: SQLITE_BUSY and SQLITE_LOCKED; the upper bytes tell the kind.
_SQLITE_LOCKS: Final = frozenset({5, 6})


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
        if paramstyle is not None and paramstyle not in _PLACEHOLDERS:
            raise ValueError(f"paramstyle: {paramstyle!r} is not one of {', '.join(_PLACEHOLDERS)}")
        self._table, self._lock_timeout_s, self._paramstyle, self._keep = table, lock_timeout_s, paramstyle, keep

    # --- for the local transaction ----------------------------------------------------------------------------------------
    def create_table(self, connection: Connection) -> None:
        """Make the table if it is not there, and commit. Run it once, where you make your other tables."""
        sql = self._sql(connection)
        sql.run(
            f"CREATE TABLE IF NOT EXISTS {self._table} (id VARCHAR(255) PRIMARY KEY, state VARCHAR(16) NOT NULL,"
            " created_at_ms BIGINT NOT NULL)"
        )
        connection.commit()

    def record(self, connection: Connection, id: str) -> None:
        """Insert the row of this transaction's half, in the transaction that this connection is in. You commit.

        AlreadyAnswered: a check-back was faster and has answered ROLLBACK. Let the exception roll your transaction back.
        """
        sql = self._sql(connection)
        sql.refuse_autocommit()
        try:
            self._insert(sql, id, COMMITTED)
        except Exception as error:
            if not _is_integrity(error):
                raise
            raise AlreadyAnswered(
                f"{self._table} has a row for {id}: a check-back has answered ROLLBACK (or this transaction was recorded twice); "
                "roll the local transaction back"
            ) from error

    # --- for the check ----------------------------------------------------------------------------------------------------
    def listener(self, connect: Connect) -> Callable[[Check], Outcome]:
        """For `Producer(…, on_check=barrier.listener(connect))`."""
        return lambda check: self.answer(connect, check.id)

    def answer(self, connect: Connect, id: str) -> Outcome:
        """What became of this transaction. `connect()` gives a connection for this answer alone; it is closed here (a context
        manager, such as a pool's, is entered and left).

        1  insert `rolled_back` and commit: there was no row, and there will be none of the local transaction
        2  there was one: its state is the answer
        3  another transaction may have one, and holds a lock: UNKNOWN
        """
        with _opened(connect()) as connection:
            sql = self._sql(connection)
            try:
                sql.wait_at_most(self._lock_timeout_s)
                self._insert(sql, id, ROLLED_BACK)  # 1
                connection.commit()
                return Outcome.ROLLBACK
            except Exception as error:
                connection.rollback()
                if _is_integrity(error):
                    return self._outcome(connection, id)  # 2
                if _is_lock(error):
                    return Outcome.UNKNOWN  # 3
                raise

    def _outcome(self, connection: Connection, id: str) -> Outcome:
        rows = self._sql(connection).run(f"SELECT state FROM {self._table} WHERE id = {{id}}", id=id)
        connection.rollback()
        if not rows:  # it was there a moment ago
            return Outcome.UNKNOWN
        [[state]] = rows
        try:
            return {COMMITTED: Outcome.COMMIT, ROLLED_BACK: Outcome.ROLLBACK}[state]
        except KeyError:
            raise BarrierError(f"{self._table}.state: is {state!r} for {id}; only this class may write the table") from None

    # --- for the house ----------------------------------------------------------------------------------------------------
    def prune(self, connection: Connection, older_than: timedelta = timedelta(days=30)) -> int:
        """Delete old rows, and commit; how many. A row that is gone too early makes a check-back answer ROLLBACK for what was
        committed: stay well above Escrow's fileReservedTime, and above the time within which an operator may resume a discarded
        half.
        """
        if older_than < self._keep:
            raise ValueError(
                f"older_than: is {older_than}, and Escrow may still ask about rows younger than {self._keep}; "
                "wait longer, or lower `keep` together with Escrow's fileReservedTime"
            )
        before_ms = _now_ms() - older_than // timedelta(milliseconds=1)
        count = self._sql(connection).count(f"DELETE FROM {self._table} WHERE created_at_ms < {{before_ms}}", before_ms=before_ms)
        connection.commit()
        return count

    def _insert(self, sql: _Sql, id: str, state: str) -> None:
        statement = f"INSERT INTO {self._table} (id, state, created_at_ms) VALUES ({{id}}, {{state}}, {{now_ms}})"
        sql.run(statement, id=id, state=state, now_ms=_now_ms())

    def _sql(self, connection: Connection) -> _Sql:
        return _Sql(connection, self._paramstyle)


class _Sql:
    """Runs statements on whatever kind of connection this is, within one transaction. Parameters are written {name}."""

    def __init__(self, connection: Connection, paramstyle: str | None) -> None:
        self.connection = connection
        self._alchemy = _alchemy_connection(connection)
        self._driver = _driver_connection(connection if self._alchemy is None else self._alchemy.connection)
        self._paramstyle = paramstyle or self._known_paramstyle()

    def _known_paramstyle(self) -> str:
        if self._alchemy is not None:
            return str(self._alchemy.dialect.paramstyle)
        module = type(self._driver).__module__.partition(".")[0]
        found = getattr(sys.modules.get(module), "paramstyle", None)
        if found not in _PLACEHOLDERS:
            raise ValueError(f"paramstyle: module {module} of this connection does not say; name it: Barrier(paramstyle=…)")
        return str(found)

    @property
    def _is_sqlite(self) -> bool:
        return type(self._driver).__module__.startswith("sqlite3")

    @property
    def _is_postgresql(self) -> bool:
        return type(self._driver).__module__.partition(".")[0] in ("psycopg", "psycopg2", "pg8000")

    def run(self, statement: str, **values: object) -> list[Any]:
        """Rows, where there are any."""
        with self._executed(statement, values) as result:
            if self._alchemy is not None:
                return list(result) if result.returns_rows else []
            return list(result.fetchall()) if result.description else []

    def count(self, statement: str, **values: object) -> int:
        """How many rows a statement has changed."""
        with self._executed(statement, values) as result:
            return int(result.rowcount)

    @contextmanager
    def _executed(self, statement: str, values: dict[str, object]) -> Iterator[Any]:
        text, parameters = self._written(statement, values)
        if self._alchemy is not None:
            yield self._alchemy.exec_driver_sql(text, parameters)
            return
        cursor = self.connection.cursor()
        try:
            cursor.execute(text, parameters)
            yield cursor
        finally:
            cursor.close()

    def _written(self, statement: str, values: dict[str, object]) -> tuple[str, Any]:
        """Statement and parameters as this driver wants them. Every statement here names its parameters in their order."""
        pattern = _PLACEHOLDERS[self._paramstyle]
        names = {name: pattern.format(name=name, number=number) for number, name in enumerate(values, 1)}
        return statement.format(**names), dict(values) if self._paramstyle in _BY_NAME else tuple(values.values())

    # --- what differs from one database to the other ----------------------------------------------------------------------
    def wait_at_most(self, lock_timeout_s: float) -> None:
        """For the locks of this transaction. Other databases have their own default, or `connect` sets it."""
        timeout_ms = max(1, round(lock_timeout_s * 1000))
        if self._is_postgresql:
            if getattr(self._driver, "autocommit", False) is True:
                self.run("BEGIN")  # SET LOCAL means nothing outside a transaction, and the insert would wait for ever
            self.run(f"SET LOCAL lock_timeout = {timeout_ms}")
        elif self._is_sqlite:
            self.run(f"PRAGMA busy_timeout = {timeout_ms}")

    def refuse_autocommit(self) -> None:
        """Raise where the driver would commit the row by itself, before and whatever the rest does."""
        if self._is_sqlite:
            alone = not self._driver.in_transaction and _sqlite_autocommits(self._driver)
        else:
            autocommit = getattr(self._driver, "autocommit", False)
            alone = autocommit is True and not _in_block(self._driver)
        if alone:
            raise NotInTransaction("the connection is in autocommit mode: begin a transaction (BEGIN) before you record in it")


def _sqlite_autocommits(driver: Any) -> bool:
    """Python 3.12 has an attribute for it; before, and where that is left alone, isolation_level None means it."""
    autocommit = getattr(driver, "autocommit", -1)
    return bool(autocommit) if isinstance(autocommit, bool) else driver.isolation_level is None


def _in_block(driver: Any) -> bool:
    """psycopg: an explicit transaction block on a connection in autocommit mode. 0 is IDLE."""
    status = getattr(getattr(driver, "info", None), "transaction_status", 0)
    return int(status) != 0


def _alchemy_connection(connection: Connection) -> Any:
    """SQLAlchemy's Connection, of itself or of a Session; None for any other."""
    if hasattr(connection, "exec_driver_sql"):
        return connection
    if hasattr(connection, "get_bind") and hasattr(connection, "connection"):
        return connection.connection()
    return None


def _driver_connection(connection: Connection) -> Any:
    """What a pool has wrapped."""
    return getattr(connection, "dbapi_connection", None) or connection


@contextmanager
def _opened(given: Any) -> Iterator[Connection]:
    """A connection to use and close; from a context manager (a pool's), whatever it gives."""
    if not hasattr(given, "rollback") and hasattr(given, "__enter__"):
        with given as connection:
            yield connection
        return
    try:
        yield given
    finally:
        given.close()


def _is_integrity(error: Exception) -> bool:
    """DB-API and SQLAlchemy both call it so; there is no common class."""
    return any(kind.__name__ == "IntegrityError" for kind in type(error).__mro__)


def _is_lock(error: Exception) -> bool:
    """Another transaction holds what we need, or held it too long."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    sqlite_code = getattr(original, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return sqlite_code & 0xFF in _SQLITE_LOCKS
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if sqlstate is not None:
        return sqlstate in _LOCK_SQLSTATES
    return bool(original.args) and original.args[0] in _LOCK_ERRNOS


def _now_ms() -> int:
    """This machine's clock: only pruning, which is far from precise, looks at it."""
    return time.time_ns() // 1_000_000
