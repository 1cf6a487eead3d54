"""Messages carry the trace of an application that has one, and are left alone otherwise."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

from opentelemetry import context, trace

from escrow._otel import carrying, span
from escrow.messages import Message

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
CURRENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def current_span():
    there = trace.NonRecordingSpan(trace.SpanContext(TRACE, SPAN, is_remote=False, trace_flags=trace.TraceFlags(1)))
    token = context.attach(trace.set_span_in_context(there))
    try:
        yield
    finally:
        context.detach(token)


def test_a_message_carries_the_current_trace():
    with current_span():
        first, second = carrying([Message("t", "a", properties={"colour": "blue"}), Message("t", "b")])
    assert dict(first.properties) == {"colour": "blue", "traceparent": CURRENT}
    assert dict(second.properties) == {"traceparent": CURRENT}


def test_what_a_message_brings_counts():
    mine = Message("t", "a", properties={"traceparent": "mine"})
    with current_span():
        assert carrying([mine]) == [mine]


def test_without_a_current_trace_nothing_is_added():
    messages = [Message("t", "a")]
    assert carrying(messages) is messages
    with span("local transaction", transaction_id="1"):
        assert not trace.get_current_span().get_span_context().is_valid


def test_an_application_without_opentelemetry_never_loads_it():
    code = """
import sys
from escrow._otel import carrying, span
from escrow.messages import Message
messages = [Message("t", "a")]
assert carrying(messages) is messages
with span("end"):
    pass
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
