"""The courier of a group with a webhook: a signed POST for each request, to the URL in the groups file."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

from ingest.capabilities import Capabilities
from ingest.checks.couriers import Courier
from ingest.checks.delivery import Handover
from ingest.checks.webhooks import NotHandedOver, Verdict, WebhookClient, encode

#: Waits between the attempts at one request.
BACKOFF_S: Final = (0.5, 2.0)


class WebhookCourier(Courier):
    """Posts each request, and again after a pause where that may help."""

    via = "webhook"

    def __init__(self, edge: Capabilities, client: WebhookClient, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__(edge, client.group, f"webhook {client.shown}", clock_s)
        self.client, self.slots = client, client.webhook.concurrency
        self._verdicts: dict[int, Verdict] = {}

    async def hand_over(self, handover: Handover) -> None:
        (request,) = handover.requests
        id = self._edge.checks.id_of(request)
        body = encode(self.group, request, id)
        for wait_s in (*BACKOFF_S, None):
            try:
                async with asyncio.timeout(self.client.webhook.timeout_s):
                    verdict = await self.client.post(f"{id}.{request.attempt}", body, self._edge.now_ms() // 1000)
            except TimeoutError:
                failure = NotHandedOver(f"no answer within {self.client.webhook.timeout_s:g} s (timeout)", again=True)
            except NotHandedOver as error:
                failure = error
            else:
                self._verdicts[request.half_offset] = verdict
                return
            if wait_s is None or not failure.again or self._stopping:
                raise failure
            await asyncio.sleep(wait_s * random.uniform(0.8, 1.2))
            if not self._edge.checks.still_asked(handover):
                raise failure
        raise AssertionError("the last attempt returns or raises")

    async def answer(self, handover: Handover) -> None:
        (request,) = handover.requests
        await self._say(request, self._verdicts.pop(request.half_offset))

    async def close(self) -> None:
        await super().close()
        await self.client.close()
