"""What the application's own OpenTelemetry has to do with Escrow: a message carries the context that it was sent in.

Only where the application has loaded OpenTelemetry; otherwise all of this does nothing, and nothing is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

from escrow.messages import Message

_API: Final = "opentelemetry.trace"
_TRACEPARENT: Final = "traceparent"
_NOTHING: Final = nullcontext()


def carrying(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with the current trace in their properties; one that has a trace already keeps it."""
    if _API not in sys.modules:
        return messages
    carrier: dict[str, str] = {}
    propagate: Any = importlib.import_module("opentelemetry.propagate")
    propagate.inject(carrier)
    found = {name: value for name, value in carrier.items() if name in (_TRACEPARENT, "tracestate")}
    if _TRACEPARENT not in found:
        return messages
    return [
        message if _TRACEPARENT in message.properties else replace(message, properties={**message.properties, **found})
        for message in messages
    ]


def span(name: str, **attributes: str) -> AbstractContextManager[object]:
    """A span of the application's own trace around what we do for it; nothing where there is none."""
    api: Any = sys.modules.get(_API)
    if api is None or not api.get_current_span().get_span_context().is_valid:
        return _NOTHING
    given = {f"escrow.{key}": value for key, value in attributes.items() if value}
    spans: AbstractContextManager[object] = api.get_tracer("escrow").start_as_current_span(
        name, attributes={"messaging.system": "escrow", **given}
    )
    return spans
