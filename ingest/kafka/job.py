"""What can be seen of the job from here: whether some driver is a member of the lease's consumer group.

By the list of groups, not by a description of the one: librdkafka 2.16 ends the process when it loses the broker while it looks for
a group's coordinator on behalf of an admin request (an assertion in rdkafka_queue.h).
"""

from __future__ import annotations

import asyncio
from typing import Final

from confluent_kafka import ConsumerGroupState, KafkaException
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
            self.state = await asyncio.to_thread(self._look)
            await asyncio.sleep(LOOK_S)

    def _look(self) -> str:
        try:
            listed = self._admin.list_consumer_groups(request_timeout=ASK_S).result(ASK_S)
        except (KafkaException, TimeoutError):  # out of reach: nothing is known of it
            return "silent" if self.state == "running" else self.state
        states = {group.group_id: group.state for group in listed.valid}
        if self._group not in states:
            return "absent"
        return "silent" if states[self._group] in (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD) else "running"
