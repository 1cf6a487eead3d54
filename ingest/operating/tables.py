"""The history of transactions as tables, page by page, for operators: what `escrow.spark` reads over HTTP.

A page covers a range of half offsets. It opens the store's files for itself, in a thread: it may read much of the op log.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from ingest.errors import InvalidRequest, NotFound
from ingest.ids import Sealer
from ingest.threads import Threads
from store.edge.store import EdgeStore
from store.read.export_scan import Wanted
from store.read.tables import COLUMNS, STATE_WORDS, Tables, as_list
from store.records import State

#: Halves of one page.
HALVES_MAX: Final = 16_384


class TableAsk(Struct, frozen=True):
    """Which rows. Times are stored times of halves; names: None = all of them; `stop`: halves before it."""

    half_offset: int = 0
    stop: int | None = None
    max: int = HALVES_MAX
    since_ms: int = 0
    until_ms: int | None = None
    group: str | None = None
    topic: str | None = None
    state: str | None = None

    def wanted(self) -> Wanted:
        states = None if self.state is None else [State(n) for n, word in enumerate(STATE_WORDS) if word == self.state]
        return Wanted(
            self.since_ms, self.until_ms, None if self.group is None else [self.group],
            None if self.topic is None else [self.topic], states,
        )  # fmt: skip


class TablePage(Struct):
    """Rows in columns. `begin` … `end`: the halves that there are of the asked time; `next`: the half to go on from."""

    begin: int
    end: int
    next: int
    columns: dict[str, list[Any]]


class TablePages:
    """Lives in the event loop."""

    def __init__(self, store: EdgeStore, sealer: Sealer) -> None:
        self._root, self._sealer = store.directory.root, sealer
        self._threads = Threads("tables", 1)

    async def page(self, table: str, ask: TableAsk) -> TablePage:
        if table not in COLUMNS:
            raise NotFound(f"{table[:64]}: there is no such table; there are {', '.join(COLUMNS)}")
        if ask.state is not None and ask.state not in STATE_WORDS[1:]:
            raise InvalidRequest(f"state: {ask.state!r} is none; there are {', '.join(dict.fromkeys(STATE_WORDS[1:]))}", "state")
        return await self._threads.call(self._page, table, ask)

    def _page(self, table: str, ask: TableAsk) -> TablePage:
        tables, wanted = Tables(self._root, self._sealer.seal_rows), ask.wanted()
        try:
            begin, end = tables.extent(wanted)
            first = max(ask.half_offset, begin)
            stop = max(first, min(end, first + ask.max, end if ask.stop is None else ask.stop))
            columns: dict[str, list[Any]] = {name: [] for name in COLUMNS[table]}
            for found in tables.scan(table, first, stop, wanted) if first < stop else ():
                for name, column in found.items():
                    columns[name] += as_list(column)
            return TablePage(begin, end, stop, columns)
        finally:
            tables.close()

    def close(self) -> None:
        self._threads.close()
