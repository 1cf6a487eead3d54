"""SQL on whatever connection the barrier is given: DB-API 2 and SQLAlchemy, told apart by what they can do. Nothing is imported.

Connections that must be awaited are in `escrow._async_databases`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from escrow.errors import NotInTransaction

#: DB-API connections have no common type that could be named.
Connection = Any
Connect = Callable[[], Any]

#: How a driver writes the parameter `{name}` with the number `{number}`.
PLACEHOLDERS: Final = {
    "qmark": "?", "format": "%s", "pyformat": "%({name})s", "named": ":{name}", "numeric": ":{number}",
    "numeric_dollar": "${number}",
}  # fmt: skip
_BY_NAME: Final = ("pyformat", "named")
#: Errors that say "another transaction holds this row": lock_not_available, query_canceled, deadlock, serialization.
_LOCK_SQLSTATES: Final = frozenset({"55P03", "57014", "40P01", "40001"})
#: The same in MySQL and MariaDB: lock wait timeout, deadlock, nowait.
_LOCK_ERRNOS: Final = frozenset({1205, 1213, 3572})
#: SQLITE_BUSY and SQLITE_LOCKED; the upper bytes tell the kind.
_SQLITE_LOCKS: Final = frozenset({5, 6})
#: libpq's transaction status: in a transaction, and no statement is running.
IN_TRANSACTION: Final = 2
#: A pool may have given the connection to another thread since: only the number tells its transaction from ours.
TRANSACTION_NUMBER: Final = "SELECT txid_current_if_assigned()"
_POSTGRESQL_DRIVERS: Final = frozenset({"psycopg", "psycopg2", "pg8000", "asyncpg"})


class Sql:
    """Runs statements within the connection's transaction. Parameters are written {name}."""

    def __init__(self, connection: Connection, paramstyle: str | None) -> None:
        self.connection = connection
        self._alchemy = alchemy_connection(connection)
        self._driver = _driver_connection(connection if self._alchemy is None else self._alchemy.connection)
        self._paramstyle = paramstyle or self._known_paramstyle()

    def _known_paramstyle(self) -> str:
        if self._alchemy is not None:
            found = str(self._alchemy.dialect.paramstyle)
            of = f"SQLAlchemy's dialect {self._alchemy.dialect.name}"
        else:
            module = type(self._driver).__module__.partition(".")[0]
            found, of = str(getattr(sys.modules.get(module), "paramstyle", None)), f"module {module} of this connection"
        if found not in PLACEHOLDERS:
            raise ValueError(f"paramstyle: {of} says {found!r}; name one that it takes: Barrier(paramstyle=…)")
        return found

    @property
    def _database(self) -> str:
        """postgresql, sqlite, or another name."""
        if self._alchemy is not None:
            return str(self._alchemy.dialect.name)
        module = type(self._driver).__module__.partition(".")[0]
        return "postgresql" if module in _POSTGRESQL_DRIVERS else "sqlite" if module == "sqlite3" else module

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
        text, parameters = written(statement, values, self._paramstyle)
        if self._alchemy is not None:
            yield self._alchemy.exec_driver_sql(text, parameters)
            return
        cursor = self.connection.cursor()
        try:
            cursor.execute(text, parameters)
            yield cursor
        finally:
            cursor.close()

    def probe(self) -> Callable[[], bool]:
        """Says later whether the transaction that the connection is in now is still open."""
        held, paramstyle = hold(self.connection), self._paramstyle
        if self._alchemy is not None:
            begun = hold(self.connection.get_transaction())
            return lambda: begun() is not None and held().get_transaction() is begun()
        if self._database == "sqlite":
            return lambda: bool(held().in_transaction)
        number = self.transaction_number()
        return lambda: number is not None and held() is not None and Sql(held(), paramstyle).transaction_number() == number

    def transaction_number(self) -> int | None:
        """PostgreSQL's number of the transaction that is open. None: there is none, it has only read, another thread is using the
        connection at this moment, or the driver does not tell."""
        if _status(self._driver) != IN_TRANSACTION:
            return None
        [[number]] = self.run(TRANSACTION_NUMBER)
        return number if number is None else int(number)

    # --- what differs from one database to the other ----------------------------------------------------------------------
    def wait_at_most(self, lock_timeout_s: float) -> None:
        """For the locks of this transaction. Other databases have their own default, or `connect` sets it."""
        timeout_ms = max(1, round(lock_timeout_s * 1000))
        if self._database == "postgresql":
            if self._alchemy is None and getattr(self._driver, "autocommit", False) is True:
                self.run("BEGIN")  # SET LOCAL means nothing outside a transaction, and the insert would wait for ever
            self.run(f"SET LOCAL lock_timeout = {timeout_ms}")
        elif self._database == "sqlite":
            self.run(f"PRAGMA busy_timeout = {timeout_ms}")

    def refuse_autocommit(self) -> None:
        """Raise where the driver would commit the row by itself, before and whatever the rest does."""
        if self._database == "sqlite":
            alone = not getattr(self._driver, "in_transaction", False) and _sqlite_autocommits(self._driver)
        else:
            alone = getattr(self._driver, "autocommit", False) is True and _status(self._driver) == 0
        if alone:
            raise NotInTransaction("the connection is in autocommit mode: begin a transaction (BEGIN) before you record in it")


def written(statement: str, values: dict[str, object], paramstyle: str) -> tuple[str, Any]:
    """Statement and parameters as a driver wants them. Every statement names its parameters in their order."""
    pattern = PLACEHOLDERS[paramstyle]
    names = {name: pattern.format(name=name, number=number) for number, name in enumerate(values, 1)}
    return statement.format(**names), dict(values) if paramstyle in _BY_NAME else tuple(values.values())


def _sqlite_autocommits(driver: Any) -> bool:
    """Python 3.12 has an attribute for it; before, and where that is left alone, isolation_level None means it."""
    autocommit = getattr(driver, "autocommit", -1)
    return bool(autocommit) if isinstance(autocommit, bool) else driver.isolation_level is None


def hold(thing: Any) -> Callable[[], Any]:
    """Gives the thing back as long as others keep it; where that cannot be told, always."""
    try:
        return weakref.ref(thing)
    except TypeError:  # sqlite3's connections, None
        return lambda: thing


def in_transaction(connection: Connection) -> bool:
    """Whether a connection is in a transaction, as far as it tells. Nothing is run on it."""
    if hasattr(connection, "in_transaction"):  # SQLAlchemy's is a method, sqlite3's is none
        found = connection.in_transaction
        return bool(found() if callable(found) else found)
    return _status(connection) != 0


def _status(driver: Any) -> int:
    """libpq's transaction status: 0 is idle. (psycopg and psycopg2 tell it; other drivers count as idle.)"""
    status = getattr(getattr(driver, "info", None), "transaction_status", 0)
    return int(status)


def alchemy_connection(connection: Connection) -> Any:
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
def opened(given: Any) -> Iterator[Connection]:
    """A connection to use and close; from a context manager (a pool's), whatever it gives."""
    if not hasattr(given, "rollback") and hasattr(given, "__enter__"):
        with given as connection:
            yield connection
        return
    try:
        yield given
    finally:
        given.close()


def is_integrity(error: Exception) -> bool:
    """DB-API and SQLAlchemy both call it so; asyncpg has a class for each code of SQL's class 23."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"IntegrityError", "IntegrityConstraintViolationError"})


def is_lock(error: Exception) -> bool:
    """Another transaction holds what we need, or held it too long."""
    original = getattr(error, "orig", None) or error  # SQLAlchemy wraps the driver's
    sqlite_code = getattr(original, "sqlite_errorcode", None)
    if sqlite_code is not None:
        return sqlite_code & 0xFF in _SQLITE_LOCKS
    sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    if sqlstate is not None:
        return sqlstate in _LOCK_SQLSTATES
    return bool(original.args) and original.args[0] in _LOCK_ERRNOS
