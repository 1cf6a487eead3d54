"""What can be seen of the job from here: whether some driver is a member of the lease's consumer group."""

from __future__ import annotations

import asyncio
from typing import Final

from confluent_kafka.admin import AdminClient

from sinks.kafka import groups

LOOK_S: Final = 5.0
ASK_S: Final = 10.0


class JobWatch:
    """Lives in the event loop. `state`: absent (there never was one), silent (there is none now), running."""

    def __init__(self, admin: AdminClient, lease_group: str) -> None:
        self._admin, self._group = admin, lease_group
        self.state = "absent"

    async def run(self) -> None:
        while True:
            self.state = await asyncio.to_thread(self._look)
            await asyncio.sleep(LOOK_S)

    def _look(self) -> str:
        live, whole, _ = groups.members(self._admin, ASK_S)
        if self._group not in live and not whole:  # out of reach: nothing is known of it
            return "silent" if self.state == "running" else self.state
        if self._group not in live:
            return "absent"
        return "running" if live[self._group] else "silent"
