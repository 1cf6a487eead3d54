"""What can be seen of the job from here: whether some driver is a member of the lease's consumer group."""

from __future__ import annotations

import asyncio
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

LOOK_S: Final = 5.0
ASK_S: Final = 10.0


class JobWatch:
    """Lives in the event loop. `state`: absent (there never was one), silent (there is none now), running."""

    def __init__(self, admin: AdminClient, lease_group: str) -> None:
        self._admin, self._group = admin, lease_group
        self.state = "absent"

    async def run(self) -> None:
        while True:
            try:
                members = await asyncio.to_thread(self._members)
            except (KafkaException, TimeoutError):  # out of reach: nothing is known of it
                members = 0
            if members:
                self.state = "running"
            elif self.state == "running":
                self.state = "silent"
            await asyncio.sleep(LOOK_S)

    def _members(self) -> int:
        found = self._admin.describe_consumer_groups([self._group], request_timeout=ASK_S)[self._group].result(ASK_S)
        return len(found.members)
