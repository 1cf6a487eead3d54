"""Spans of what a batch settled, when tracing is on (runtime/tracing.py): from the end's storing to its settlement."""

from __future__ import annotations

from typing import Final

from runtime.tracing import Tracer
from store.errors import StoreError
from store.read.readers import LogReader
from store.records import Via
from store.transitions import Effect
from streaming.settlement.settle import Ended

#: Of one batch; a message says in its frame whether it is traced, and frames are looked at one by one.
SPANS_MAX: Final = 2048
_NAMES: Final = {
    Effect.RELEASE: "release",
    Effect.ROLLBACK: "roll back",
    Effect.DISCARD_MAX: "discard",
    Effect.DISCARD_EXPIRED: "discard",
}


class SettledSpans:
    """In the batch thread."""

    def __init__(self, tracer: Tracer, log: LogReader) -> None:
        self._tracer, self._log = tracer, log

    def note(self, ended: Ended, now_ms: int) -> None:
        rows = zip(ended.half_offset.tolist(), ended.effect.tolist(), ended.via.tolist(), ended.said_at_ms.tolist(), strict=True)
        for _, (half_offset, effect, via, said_at_ms) in zip(range(SPANS_MAX), rows, strict=False):
            try:
                frame = self._log.frame(self._log.half_queue.read(half_offset, half_offset + 1)[0])
            except (StoreError, IndexError):  # corrupt, or gone: it has no span
                continue
            said = {
                "escrow.half_offset": half_offset,
                "escrow.via": Via(via).name.lower(),
                "escrow.effect": Effect(effect).name.lower(),
            }
            topic = frame.properties.get("REAL_TOPIC", "")
            self._tracer.record(f"{_NAMES[Effect(effect)]} {topic}", frame.properties, said_at_ms, now_ms, said)

    def close(self) -> None:
        self._tracer.close()
