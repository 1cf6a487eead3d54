"""When messages that were set aside are tried again, and which of them together. One `Retries` a shard, under its lock.

A topic whose messages were set aside is tried again after a second, then after two, four … up to kafkaRetryInterval; as long as
tries succeed, one follows another without a pause. Until the next try is due, new messages for a topic that took nothing at all
join the list without being sent: a batch waits for such a topic once, not again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from store.arrays import Array, how_many_fit
from store.job.undeliverable import NO_LANE, Undeliverables
from store.tables.state_table import StateTable

FIRST_PAUSE_MS: Final = 1_000
RETRY_MESSAGES_MAX: Final = 10_000


@dataclass(slots=True)
class _Pause:
    """A topic that is left alone."""

    until_ms: int
    length_ms: int
    barred: str = ""  # why it took nothing at all


class Retries:
    """Pauses by topic. What is on the list and has no pause is due: after a restart everything is."""

    def __init__(self, pause_max_ms: int) -> None:
        self._pause_max_ms = pause_max_ms
        self._pauses: dict[str, _Pause] = {}

    def note(self, aside: Undeliverables, barred: Mapping[str, str], now_ms: int) -> None:
        """A batch was written: `barred` are the topics that took nothing of it."""
        topics = aside.topics() if len(aside) else set()
        for topic in [topic for topic in self._pauses if topic not in topics]:
            del self._pauses[topic]
        for topic in topics - set(self._pauses):
            self._pauses[topic] = _Pause(now_ms + FIRST_PAUSE_MS, min(FIRST_PAUSE_MS, self._pause_max_ms))
        for topic, reason in barred.items():
            if topic in self._pauses:
                self._pauses[topic].barred = reason

    def barred(self) -> dict[str, str]:
        """Topics that nothing is sent to before the next try."""
        return {topic: pause.barred for topic, pause in self._pauses.items() if pause.barred}

    def due(self, aside: Undeliverables, now_ms: int) -> str | None:
        """A topic to try now."""
        for topic in aside.topics() if len(aside) else ():
            pause = self._pauses.get(topic)
            if pause is None or not now_ms < pause.until_ms <= now_ms + self._pause_max_ms:
                return topic
        return None

    def begin(self, topic: str) -> None:
        """It is tried now, so it is not barred."""
        if topic in self._pauses:
            self._pauses[topic].barred = ""

    def tried(self, topic: str, released: int, now_ms: int) -> None:
        """A try has ended, and so many messages went out."""
        pause = self._pauses.get(topic)
        if pause is None:
            return
        pause.length_ms = FIRST_PAUSE_MS if released else min(2 * pause.length_ms, self._pause_max_ms)
        pause.until_ms = now_ms if released else now_ms + pause.length_ms


def next_tries(aside: Undeliverables, topic: str, table: StateTable, bytes_max: int) -> Array:
    """Half offsets of the messages of a topic to try in one transaction, in the order of their ends. Lanes whose first message was
    tried least come first, so everybody has a turn; of a lane always the first ones."""
    lanes: dict[int, list[tuple[int, int]]] = {}
    attempts: dict[int, int] = {}
    for rank, (half_offset, each) in enumerate(aside.items()):
        if each.refusal.topic == topic:
            lane = each.refusal.lane if each.refusal.lane != NO_LANE else -1 - rank
            lanes.setdefault(lane, []).append((rank, half_offset))
            attempts.setdefault(lane, each.attempts)
    ordered = sorted(lanes, key=lambda lane: (attempts[lane], lanes[lane][0]))
    chosen = [place for lane in ordered for place in lanes[lane]][:RETRY_MESSAGES_MAX]
    half_offsets = np.array([half_offset for _, half_offset in chosen], np.int64)
    count = how_many_fit(table.get(half_offsets)["size_bytes"], bytes_max)
    return np.array([half_offset for _, half_offset in sorted(chosen[:count])], np.int64)
