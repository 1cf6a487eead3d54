"""Whether Kafka can be reached: after one failure all requests are refused at once, until a look at Kafka succeeds again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException

from ingest.errors import EdgeError, KafkaUnreachable
from sinks.kafka.clients import Connection

#: A look at Kafka while it is out of reach: how often, and how long one may take.
LOOK_S: Final = 0.5
LOOK_TIMEOUT_S: Final = 3.0


def look_at(connection: Connection, topic: str) -> str:
    """Why Kafka does not answer, or "". In a thread, and by a new client: one that has nothing to send does not reconnect."""
    try:
        connection.admin().list_topics(topic, timeout=LOOK_TIMEOUT_S)
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


class Reach:
    """Lives in the event loop; `look` is called in a thread and says why Kafka does not answer, or ""."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look
        self._woken = asyncio.Event()
        self.trouble = ""
        self.failures = 0

    def require(self) -> None:
        if self.trouble:
            raise KafkaUnreachable(f"Kafka is out of reach ({self.trouble}): try again later; nothing was stored")

    def failed(self, reason: str) -> None:
        self.failures += 1
        self.trouble = reason
        self._woken.set()

    def unreachable(self, error: Exception) -> EdgeError:
        """Note a failed question, and what to answer."""
        reason = error.args[0].str() if isinstance(error, KafkaException) else "no answer"
        self.failed(reason)
        return KafkaUnreachable(f"Kafka does not answer ({reason}): try again later")

    async def run(self) -> None:
        """While it is out of reach, look whether it is back."""
        while True:
            await self._woken.wait()
            self.trouble = await asyncio.to_thread(self._look)
            if self.trouble:
                await asyncio.sleep(LOOK_S)
            else:
                self._woken.clear()
