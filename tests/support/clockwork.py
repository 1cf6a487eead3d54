"""Edge, job, one member and the schedule of rounds, second by second."""

from __future__ import annotations

from store.tables.journals.names import Dictionary
from store.tables.presence import Presence
from streaming.settlement.rounds import Rounds
from tests.support.edge_world import World


class Clockwork:
    """Edge, job, one member and the schedule of rounds; `second` plays one second of their life."""

    def __init__(self, w: World, *, member: bool = True) -> None:
        self.w, self._member, self._asked = w, member, 0
        self.begun_ms = w.now_ms
        self._names = Dictionary(w.settings.store_dir / "dictionary")
        self._presence = Presence(w.settings.store_dir / "presence")
        self.rounds = Rounds(
            w.settler, self._live, lambda: True, w.now_ms, root=w.job.directory.root, op_end=lambda: w.job.log.ends()[1]
        )

    def _live(self, now_ms):
        self._names.refresh()
        return self._presence.live(now_ms, self.w.settings.presence_ttl_ms, len(self._names.groups))

    @property
    def now_s(self) -> int:
        return (self.w.now_ms - self.begun_ms) // 1000

    async def second(self, seconds: int = 1) -> list[str]:
        """Time passes; then the job works, then the edge, then the member asks for requests. The ids it was asked about."""
        w = self.w
        w.now_ms += seconds * 1000
        w.settle()
        self.rounds.work(w.now_ms, lambda: False)
        w.edge._checks.look()
        await w.edge._committer.call(w.edge._followers.take)
        ids = await w.poll() if self._member else []
        self._asked += len(ids)
        await w.until(lambda: w.edge._committer.counters.asked == self._asked)
        w.settle()
        return ids
