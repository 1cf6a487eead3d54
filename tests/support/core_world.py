"""A job under test with the whole edge core beside it: sealed ids, check delivery to members, discards, all as in the service.

`JobWorld` plays the edge itself, so that a test decides every step; here the real `ingest.edge.embedded.Edge` runs in an event
loop of its
own thread, over the same store and the same hand-moved clock. What the edge does by itself is waited for (`until`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from ingest.capabilities import EndAnswer, EndRequest
from ingest.edge.embedded import Edge
from ingest.http.wire import codec, producers
from ingest.operating.operator import Action, Result
from store.read.readers import LogReader
from store.tables.frames import Frame
from tests.support.job_world import JobWorld

PATIENCE_S = 30.0


class MemberGone(ConnectionError):
    """The connection to a member broke while it was being asked."""


class CoreWorld(JobWorld):
    """Producers, members and operators speak to the edge core; the job is real Spark."""

    def open_edge(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="edge", daemon=True)
        self._thread.start()
        self.core = self.run(self._opened())
        self.edge, self.presence = self.core.store, self.core._presence

    async def _opened(self) -> Edge:
        core = Edge(self.settings, clock=self.clock)
        await core.open()
        return core

    def _close_edge(self) -> None:
        self.run(self.core.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have the edge's loop do it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # --- producers and operators -----------------------------------------------------------------------------------------
    def send(self, text: str = "hello", group: str = "g", topic: str = "t", **rest: Any) -> str:
        """One half as it comes over the wire; its id."""
        item = {"group": group, "topic": topic, "text": text, **rest}
        (id,) = self.run(self.core.prepare(producers.messages(codec.convert({"messages": [item]}, producers.MessagesIn).messages)))
        return str(id)

    def tell(self, id: str, outcome: str, group: str = "g", **rest: Any) -> EndAnswer:
        (answer,) = self.run(self.core.end([EndRequest(group, id, outcome, **rest)]))
        return answer

    def resume(self, id: str) -> Result:
        (found,) = self.run(self.core.act(Action("resume", "ada", "once more", ids=[id]))).results
        return found

    def id_of(self, half_offset: int, group: str = "g") -> str:
        """The id of a half that was put into the store directly."""
        group_no = self.edge.dictionary.group_no(group)
        assert group_no is not None
        return self.core._sealer.seal(half_offset, group_no)

    def half_of(self, id: str) -> int:
        return self.core._sealer.open(id).half_offset

    def history(self, id: str) -> list[Frame]:
        """Every op about a half, in log order."""
        log = LogReader(self.edge.directory)
        try:
            return log.history(self.half_of(id))
        finally:
            log.close()

    # --- members -----------------------------------------------------------------------------------------------------------
    def poll(self, member: str = "m", group: str = "g", *, breaks: bool = False) -> list[str]:
        """The ids that a member is asked about. `breaks`: the connection breaks while the answer is being written."""

        async def ask() -> list[str]:
            async with self.core.poll_checks(group, member) as handover:
                ids = [self.core.id_of(request) for request in handover.requests]
                if breaks:
                    raise MemberGone(member)
                return ids

        asked = self.core._committer.counters.asked
        ids: list[str] = self.run(ask())
        self.until(lambda: self.core._committer.counters.asked == asked + len(ids), "the hand-over is recorded")
        return ids

    def ask_round(self, advance_s: float | None = None) -> None:
        """Somebody of g is there, a round falls due and is worked off, and the edge has seen its requests."""
        self.online()
        self.clock.advance(self.settings.check_interval_ms / 1000 if advance_s is None else advance_s)
        self.online()
        self.settle()
        self.look()

    def look(self) -> None:
        """Have the edge look at the job's check queue now, not a moment later."""

        async def look() -> None:
            self.core._checks.look()

        self.run(look())

    # --- waiting -------------------------------------------------------------------------------------------------------------
    def until(self, true: Callable[[], Any], what: str) -> Any:
        """Wait for what the edge does by itself."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (found := true()):
            assert time.monotonic() < give_up_s, f"waited in vain: {what}"
            time.sleep(0.005)
        return found
