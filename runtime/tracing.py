"""Tracing: one trace from a half to its release and to its consumers, by OpenTelemetry. Off unless otlpEndpoint is set.

A transaction's context travels as W3C `traceparent` in the message's properties: what its producer sent along, or the edge's own
span where there was none. Every later span of the message, in any process, is a child of that:

    half       edge   from the request to its flush
    end        edge   an outcome that a producer says
    check      edge   a check request handed to a member
    answer     edge   what that member says
    release    job    from the end's storing to its settlement; `roll back` and `discard` likewise
    consume    edge   a message handed out

OpenTelemetry is imported when a `Tracer` is made, and only then. Spans leave in the background; what cannot be sent is dropped, and
nothing waits for it. The SDK does not import this: it passes on what the application's own OpenTelemetry says
(sdk/escrow/_otel.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from runtime.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

#: The property that carries a message's trace.
TRACEPARENT: Final = "traceparent"
#: Spans that wait to be sent; more are dropped.
QUEUE_SPANS: Final = 8192
#: How long the end of a process waits for the last ones.
LAST_MS: Final = 1_000


class TracingError(RuntimeError):
    """Tracing is configured, but its packages are missing or unusable."""


class Tracer:
    """Spans of one process. For any thread."""

    def __init__(self, settings: Settings, service: str) -> None:
        try:
            from opentelemetry import trace  # noqa: PLC0415 - optional, and not for the SDK
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
        except ImportError as error:
            remedy = "install it (in a checkout of Escrow: pip install ./sdk '.[tracing]'), or leave otlpEndpoint empty"
            raise TracingError(f"otlpEndpoint is set, and OpenTelemetry is not there ({error.name}): {remedy}") from error
        self._trace, self._propagator = trace, TraceContextTextMapPropagator()
        exporter = OTLPSpanExporter(endpoint=f"{settings.otlp_endpoint.rstrip('/')}/v1/traces", timeout=5)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(1 / settings.trace_one_in)),
            resource=Resource.create({"service.name": service, "service.namespace": "escrow"}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS, schedule_delay_millis=500))
        self._tracer = self._provider.get_tracer("escrow")

    def context_of(self, properties: Mapping[str, str]) -> Context | None:
        """The trace that a message belongs to, if it is sampled."""
        if TRACEPARENT not in properties:
            return None
        context = self._propagator.extract(properties)
        return context if self._trace.get_current_span(context).get_span_context().trace_flags.sampled else None

    def begin(self, name: str, properties: Mapping[str, str], attributes: Mapping[str, Any]) -> Span:
        """A span that is ended by its caller: below the message's own trace, or the root of a new one."""
        from opentelemetry.context import Context  # noqa: PLC0415 - loaded long ago

        given = TRACEPARENT in properties
        parent = self._propagator.extract(properties) if given else Context()
        kind = self._trace.SpanKind.SERVER if given else self._trace.SpanKind.PRODUCER
        return self._tracer.start_span(name, context=parent, kind=kind, attributes=_attributes(attributes))

    def traceparent(self, span: Span) -> str:
        """What a message carries so that later spans are below this one; "" if it is not sampled."""
        if not span.is_recording():
            return ""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        return carrier[TRACEPARENT]

    def record(
        self, name: str, properties: Mapping[str, str], start_ms: float, end_ms: float, attributes: Mapping[str, Any]
    ) -> None:
        """A span of something that is over, below the message's trace; nothing where it has none."""
        context = self.context_of(properties)
        if context is not None:
            span = self._tracer.start_span(
                name, context=context, start_time=int(start_ms * 1_000_000), attributes=_attributes(attributes)
            )
            span.end(int(max(end_ms, start_ms) * 1_000_000))

    def close(self) -> None:
        """Sends what waits, for a moment."""
        self._provider.force_flush(LAST_MS)
        self._provider.shutdown()


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"messaging.system": "escrow", **{name: value for name, value in given.items() if value not in ("", None)}}
