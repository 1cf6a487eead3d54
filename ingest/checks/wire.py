"""A check request as producers see it. HTTP answers, webhooks and plug-ins send the same fields."""

from __future__ import annotations

from msgspec import Struct

from ingest.checks.delivery import CheckRequest
from ingest.consuming.deliveries import shown_properties
from store.properties import KEYS, REAL_TOPIC, TAGS


class CheckOut(Struct):
    """A question about one half, with the half itself."""

    id: str
    topic: str
    key: str
    tags: str
    body: bytes
    properties: dict[str, str]
    attempt: int
    born_at_ms: int
    stored_at_ms: int


def check(request: CheckRequest, id: str) -> CheckOut:
    frame = request.frame
    return CheckOut(
        id=id,
        topic=frame.properties.get(REAL_TOPIC, ""),
        key=frame.properties.get(KEYS, ""),
        tags=frame.properties.get(TAGS, ""),
        body=frame.body,
        properties=shown_properties(frame.properties),
        attempt=request.attempt,
        born_at_ms=frame.fields["born_at_ms"],
        stored_at_ms=frame.stored_at_ms,
    )
