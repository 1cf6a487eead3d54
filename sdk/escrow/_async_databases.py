"""Connections that must be awaited: SQLAlchemy's AsyncConnection and AsyncSession, asyncpg's and psycopg's. Nothing is imported.

SQLAlchemy's run the code for threads (`run_sync`). The drivers' own have a thin coat each, `AsyncDriver`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from escrow._databases import IN_TRANSACTION, TRANSACTION_NUMBER, hold, written
from escrow.errors import NotInTransaction


def is_async(given: Any) -> bool:
    """A connection, or what `connect()` gave, that must be awaited."""
    if hasattr(given, "__aenter__") or inspect.isawaitable(given):
        return True
    return inspect.iscoroutinefunction(getattr(type(given), "execute", None))  # asyncpg's own


def runs_sync(connection: Any) -> bool:
    """SQLAlchemy's: it can run a function for threads."""
    return hasattr(connection, "run_sync")


@asynccontextmanager
async def opened_async(given: Any) -> AsyncIterator[Any]:
    """A connection to use and close; from a context manager (an engine's, a session's, a pool's), what that gives."""
    if hasattr(given, "__aenter__"):
        async with given as connection:
            yield connection
        return
    connection = await given
    try:
        yield connection
    finally:
        await connection.close()


class AsyncDriver:
    """asyncpg or psycopg, without SQLAlchemy."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._asyncpg = hasattr(connection, "is_in_transaction")
        if not self._asyncpg and not hasattr(connection, "pgconn"):
            raise TypeError(
                f"connection: is a {type(connection).__module__}.{type(connection).__name__}; pass SQLAlchemy's AsyncConnection "
                "or AsyncSession, asyncpg's or psycopg's asynchronous connection, or any DB-API connection"
            )
        self._begun: Any = None

    async def run(self, statement: str, **values: object) -> list[Any]:
        """Rows, where there are any."""
        text, parameters = written(statement, values, "numeric_dollar" if self._asyncpg else "pyformat")
        if self._asyncpg:
            return [tuple(row) for row in await self._connection.fetch(text, *parameters)]
        cursor = await self._connection.execute(text, parameters)
        return list(await cursor.fetchall()) if cursor.description else []

    def in_transaction(self) -> bool:
        if self._asyncpg:
            return bool(self._connection.is_in_transaction())
        return int(self._connection.info.transaction_status) != 0

    def refuse_autocommit(self) -> None:
        """asyncpg commits every statement by itself outside of `transaction()`, psycopg in autocommit mode."""
        if not self.in_transaction() and (self._asyncpg or self._connection.autocommit):
            raise NotInTransaction(
                "the connection is in no transaction: begin one (`async with connection.transaction()`) before you record in it"
            )

    async def probe(self) -> Callable[[], Awaitable[bool]]:
        """Says later whether the transaction that the connection is in now is still open."""
        held, number = hold(self._connection), await self.transaction_number()

        async def is_open() -> bool:
            connection = held()
            return number is not None and connection is not None and await AsyncDriver(connection).transaction_number() == number

        return is_open

    async def transaction_number(self) -> int | None:
        """As `Sql.transaction_number`. (asyncpg raises while another task is using the connection, or has it from a pool.)"""
        if self._asyncpg:
            is_ours = bool(self._connection.is_in_transaction())
        else:
            is_ours = int(self._connection.info.transaction_status) == IN_TRANSACTION
        if not is_ours:
            return None
        [[number]] = await self.run(TRANSACTION_NUMBER)
        return number if number is None else int(number)

    async def begin(self) -> None:
        if self._asyncpg:
            self._begun = self._connection.transaction()
            await self._begun.start()
        elif self._connection.autocommit:
            await self.run("BEGIN")

    async def commit(self) -> None:
        """What was begun here. (asyncpg: a statement outside of a transaction is committed by itself.)"""
        if not self._asyncpg:
            await self._connection.commit()
        elif self._begun is not None:
            await self._begun.commit()

    async def rollback(self) -> None:
        await (self._begun if self._asyncpg else self._connection).rollback()
