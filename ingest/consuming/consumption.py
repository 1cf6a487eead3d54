"""Consumption: consumer groups pull messages, acknowledge them, and get again what they did not. No transport: that is put on it.

    poll                hand-outs are written to the journal before the answer: attempts are exact after `kill -9`
    ack                 durable before it is answered; many callers share one flush
    change_visibility   more time, or back at once
    seek                the group goes elsewhere; what it had in hand is not its any more
    dead_letters, replay

Its parts: `reading/` what there is to read (settled queues and the unsettled tail as one) and waiting for it, `places.py` where
groups stand, `group_queue.py` what a group may have of a queue, `journal.py` what is written down, `burials.py` dead letters.
At least once: a message comes again until it is acknowledged, or is a dead letter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ingest.committing.committer import Committer
from ingest.consuming import lag
from ingest.consuming.burials import Burials
from ingest.consuming.dead_letters import has_dead_letters, topic_of
from ingest.consuming.deliveries import DeadLetter, Delivery, delivery, parse_tags
from ingest.consuming.filters import Filters, TagFilter
from ingest.consuming.group_queue import ATTEMPTS_MAX, GroupQueue, Hand, Handed
from ingest.consuming.places import Places
from ingest.consuming.reading.news import News
from ingest.consuming.reading.poll_waiters import Waiting
from ingest.consuming.reading.settled_queues import Settled
from ingest.consuming.reading.start_positions import EARLIEST, parse_start
from ingest.consuming.reading.tail import Tail
from ingest.consuming.receipts import Receipt, ReceiptSealer
from ingest.errors import InvalidRequest
from runtime.clock import this_boot
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.naming import RESERVED_TOPICS, check_name
from store.read.readers import LogReader
from store.tables.delivery_cursors import Cursors
from store.tables.journals.consumers import ConsumerRecord

CONSUMER_MAX_CHARACTERS: Final = 128
_NEVER_AGAIN: Final = ATTEMPTS_MAX + 1
_PASSED_OVER: Final = ("holes", "filtered", "unreadable", "retention")

#: Hears how many bytes are about to be held for a caller, and raises where that is too much.
Hold = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class _Ask:
    """What a poll wants, checked."""

    topic: str
    group: str
    wanted: TagFilter
    begin: str | int
    count: int
    visibility_ms: int
    hold: Hold | None = None


class Consumption:
    """Lives in the event loop."""

    def __init__(
        self,
        store: EdgeStore,
        committer: Committer,
        cursors: Cursors,
        settings: Settings,
        clock: GuardedClock,
        *,
        receipts: ReceiptSealer,
        refuse: Callable[[str], None],
        boot: int | None = None,
    ) -> None:
        self._store, self._settings, self._clock, self._refuse = store, settings, clock, refuse
        self._loop, self._receipts = asyncio.get_running_loop(), receipts
        settled = Settled(store.directory, cursors, this_boot() if boot is None else boot)
        self._tail = Tail(LogReader(store.directory), settled)
        self._places = Places(store, committer, self._tail, settings, clock.elapsed_ms())
        self._ledger, self._waiting = self._places.ledger, Waiting()
        self._news = News(self._tail, store.dictionary, self._waiting, self._places.queue_keys)
        self._burials = Burials(store, committer, self._tail, self._places, self._waiting, clock=clock)
        self._filters = Filters(self._loop.time, lambda topic: store.dictionary.topic_no(topic) is not None)
        self._turn, self._closing = 0, False
        self._counts = dict.fromkeys(("polls", "handed_out", "again", "done", "stale", *_PASSED_OVER), 0)
        with contextlib.suppress(StoreError, IndexError):  # the job is just changing its files: at the next look
            self.look()

    # --- news -----------------------------------------------------------------------------------------------------------------
    def published(self) -> None:
        """In the committer's thread or in the loop: something new is flushed."""
        self._news.published()

    def looked(self) -> Tail:
        """The tail, with what is flushed taken in, as far as one look goes."""
        self._news.read_ops()
        return self._tail

    def look(self) -> None:
        """The job may have settled something."""
        self._news.look()

    def let_go(self) -> None:
        """Files were deleted: let go of them."""
        self._tail.let_go()

    def forget_removed(self) -> None:
        """Topics were removed."""
        self._places.forget_removed()

    # --- polls --------------------------------------------------------------------------------------------------------------------
    async def poll(
        self,
        topic: str,
        group: str,
        consumer: str,
        *,
        max_messages: int = 32,
        wait_s: float = 0.0,
        visibility_s: float | None = None,
        tags: str = "",
        start: str = EARLIEST,
        hold: Hold | None = None,
    ) -> list[Delivery]:
        """Messages for a consumer of the group; waits at most wait_s for the first. Empty when none came. `hold`
        hears how many bytes it is about to take; where it raises, they stay for others."""
        self._check_names(topic, group)
        if not consumer or len(consumer) > CONSUMER_MAX_CHARACTERS:
            raise InvalidRequest(f"consumer: give a name of 1 to {CONSUMER_MAX_CHARACTERS} characters")
        if max_messages < 1 or not wait_s >= 0:
            raise InvalidRequest("max: must be at least 1, and wait_s at least 0")
        count = min(max_messages, self._settings.messages_per_poll_max)
        visibility_ms = self._visibility_ms(visibility_s, least_ms=1)
        ask = _Ask(topic, group, parse_tags(tags), parse_start(start, "from"), count, visibility_ms, hold)
        self._counts["polls"] += 1
        with self._news.wanted(), self._filters.reading(topic, group, ask.wanted, consumer):
            return await self._poll(ask, min(wait_s, self._settings.poll_wait_max_ms / 1000))

    def _check_names(self, topic: str, group: str) -> None:
        self._refuse("consumers")
        if topic in RESERVED_TOPICS:
            raise InvalidRequest(f"topic: {topic} is internal and cannot be consumed: name the topic that messages are released to")
        check_name(topic, "topic")
        topic_of(group)

    def _visibility_ms(self, visibility_s: float | None, least_ms: int) -> int:
        if visibility_s is None:
            return self._settings.visibility_ms
        most_ms = self._settings.visibility_max_ms
        if not least_ms <= visibility_s * 1000 <= most_ms:
            raise InvalidRequest(
                f"visibility_s: {visibility_s} is not between {least_ms / 1000} and {most_ms / 1000} (maxVisibilityTime)"
            )
        return round(visibility_s * 1000)

    async def _poll(self, ask: _Ask, wait_s: float) -> list[Delivery]:
        deadline, place = self._loop.time() + wait_s, self._waiting.place()
        while True:
            queues = await self._places.in_topic(ask.topic, ask.group, ask.begin)
            hand = self._empty_hand(ask)
            if await self._take(ask.topic, queues, hand, ask.hold):
                tag = self._store.lineage.tag
                return [delivery(handed, ask.topic, tag, self._receipts) for handed in hand.taken]
            left_s = deadline - self._loop.time()
            if left_s <= 0 or self._closing:
                return []
            if hand.more:
                await asyncio.sleep(0)  # a filter passes over much: others may go on meanwhile
            else:
                await self._waiting.wait(ask.topic, ask.group, min(left_s, self._due_in_s(queues)), place)

    def _empty_hand(self, ask: _Ask) -> Hand:
        now_ms = self._clock.elapsed_ms()
        deliveries_max = self._settings.max_deliveries if has_dead_letters(ask.topic) else _NEVER_AGAIN
        size_bytes = self._settings.max_request_bytes // 2
        return Hand(ask.group, now_ms, now_ms + ask.visibility_ms, ask.wanted, deliveries_max, ask.count, size_bytes)

    def _due_in_s(self, queues: list[GroupQueue]) -> float:
        """How long until something in hand may lapse."""
        dues = [due for queue in queues if (due := queue.next_due_ms()) is not None]
        return max(0.001, (min(dues) - self._clock.elapsed_ms()) / 1000) if dues else float("inf")

    async def _take(self, topic: str, queues: list[GroupQueue], hand: Hand, hold: Hold | None = None) -> bool:
        """Fill the hand from a topic's queues, and write down what is in it; whether anything is."""
        trouble = self._fill(queues, hand)
        for why, passed in hand.passed_over.items():
            self._counts[why] += passed
        if hand.dying:
            self._burials.begin(topic, hand.group, hand.dying)
        if not hand.taken:
            self._places.note(hand.records)
            if trouble is not None:
                raise trouble
            return False
        try:
            if hold is not None:
                hold(sum(len(handed.frame.body) for handed in hand.taken))
            await self._ledger.note(hand.records, durable=False)
        except BaseException:
            self._give_back(topic, hand.group, hand.taken)
            raise
        self._counts["handed_out"] += len(hand.taken)
        self._counts["again"] += sum(handed.attempts > 1 for handed in hand.taken)
        if hand.more:
            self._waiting.wake(topic, hand.group)
        return True

    def _fill(self, queues: list[GroupQueue], hand: Hand) -> StoreError | None:
        """Take from one queue after another. A queue that cannot be read now is left to the next poll: what is in the hand already
        goes out all the same. The last such error."""
        self._turn += 1
        turn = self._turn % len(queues) if queues else 0
        trouble = None
        for queue in [*queues[turn:], *queues[:turn]]:
            if hand.full():
                hand.more = True
                break
            try:
                queue.take(self._tail, hand)
            except StoreError as error:
                trouble = error
        return trouble

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """The answer could not be written: its messages go to others at once, and were not handed out."""
        if deliveries:
            group = self._store.dictionary.groups[deliveries[0].handed.queue.group_no]
            self._give_back(deliveries[0].topic, group, [each.handed for each in deliveries])

    def _give_back(self, topic: str, group: str, taken: Sequence[Handed]) -> None:
        now_ms = self._clock.elapsed_ms()
        records = [handed.queue.put_back(handed, now_ms) for handed in taken if self._places.is_current(handed.queue)]
        self._places.note([record for record in records if record is not None])
        self._waiting.wake(topic, group)

    async def seek(self, topic: str, group: str, to: str) -> dict[int, int]:
        """Put the group elsewhere in a topic, durably; where it stands now: queue_id → queue_offset."""
        self._check_names(topic, group)
        places = await self._places.seek(topic, group, parse_start(to, "to"))
        self._waiting.wake(topic, group)
        return places

    # --- what became of them ------------------------------------------------------------------------------------------------------
    async def ack(self, topic: str, group: str, receipts: Sequence[str]) -> list[str]:
        """`done` or `stale` for each, in order; what is done is durable."""
        records: list[ConsumerRecord] = []
        touched: dict[int, GroupQueue] = {}
        verdicts = []
        for queue, receipt in self._open(topic, group, receipts):
            done = queue is not None and queue.acknowledge(receipt.queue_offset, receipt.attempt, receipt.visible_at_ms, records)
            if queue is not None:
                touched[queue.queue_key] = queue
            verdicts.append("done" if done else "stale")
        for queue in touched.values():
            records += queue.noted()
        self._counts["done"] += verdicts.count("done")
        self._counts["stale"] += verdicts.count("stale")
        if "done" in verdicts:  # also where it was done before: by whom, may not be durable yet
            await self._ledger.note(records, durable=True)
            self._waiting.wake(topic, group)
        return verdicts

    async def change_visibility(self, topic: str, group: str, receipts: Sequence[str], visibility_s: float) -> list[str | None]:
        """More time from now on, or with 0 back at once; the new receipts, None where the old one is stale."""
        visibility_ms, now_ms = self._visibility_ms(visibility_s, least_ms=0), self._clock.elapsed_ms()
        records: list[ConsumerRecord] = []
        answers: list[str | None] = []
        for queue, receipt in self._open(topic, group, receipts):
            place = receipt.queue_offset, receipt.attempt
            until_ms = now_ms + visibility_ms
            found = queue.change_visibility(*place, receipt.visible_at_ms, until_ms, now_ms) if queue is not None else None
            if queue is not None and found is not None:
                records.append(queue.receipt(*place, found))
            renewed = None if found is None else receipt._replace(visible_at_ms=found, tag=self._store.lineage.tag)
            answers.append(None if renewed is None else self._receipts.seal(renewed))
        if records:
            await self._ledger.note(records, durable=False)
            self._waiting.wake(topic, group)
        return answers

    def _open(self, topic: str, group: str, receipts: Sequence[str]) -> list[tuple[GroupQueue | None, Receipt]]:
        """Each receipt, and the queue that it speaks of; None where it was not sealed here, is of another group or topic, or where
        a restore has lost what it speaks of."""
        self._check_names(topic, group)
        most = self._settings.max_messages_per_request
        if not 1 <= len(receipts) <= most:
            raise InvalidRequest(f"receipts: {len(receipts)} in one request; send between 1 and {most} (maxMessagesPerRequest)")
        opened = [self._receipts.open(text, f"receipts[{number}]") for number, text in enumerate(receipts)]
        group_no, queue_keys = self._store.dictionary.group_no(group), set(self._places.queue_keys(topic))
        holds = self._store.lineage.holds
        return [
            (
                self._places.of(receipt.group_no, receipt.queue_key)
                if sealed
                and receipt.group_no == group_no
                and receipt.queue_key in queue_keys
                and holds(receipt.tag, receipt.queue_key, receipt.queue_offset)
                else None,
                receipt,
            )
            for receipt, sealed in opened
        ]

    # --- dead letters ---------------------------------------------------------------------------------------------------------
    async def condemn(self, topic: str, group: str, receipt: str) -> bool:
        """Make a dead letter of a message in hand, durably, whatever its attempts; False where the receipt is stale."""
        ((queue, opened),) = self._open(topic, group, [receipt])
        if queue is None or not has_dead_letters(topic):
            return False
        return await self._burials.condemn(topic, group, queue, opened)

    async def dead_letters(self, group: str, *, after: str = "", max_letters: int = 32) -> tuple[list[DeadLetter], str | None]:
        """Open dead letters of a group, oldest first, and the `after` for the next ones; None where these are the last."""
        if max_letters < 1:
            raise InvalidRequest("max: must be at least 1")
        self._news.read_ops()
        return self._burials.letters.page(group, after, min(max_letters, self._settings.messages_per_poll_max))

    async def replay(self, group: str, ids: Sequence[str]) -> int:
        """Give open dead letters to the group again, where they came from, and close them; how many."""
        self._refuse("replays")
        if not 1 <= len(ids) <= self._settings.max_messages_per_request:
            raise InvalidRequest(f"ids: {len(ids)} in one request; send between 1 and {self._settings.max_messages_per_request}")
        self._news.read_ops()
        return await self._burials.replay(group, ids)

    def open_dead_letters(self, group: str, ids: Sequence[str]) -> int:
        """How many of these a replay would find."""
        self._news.read_ops()
        return len(self._burials.letters.find(group, ids))

    def dead_letter_count(self, group: str) -> int:
        """How many dead letters of a group are open."""
        return self._burials.letters.count(group)

    # --- looking ------------------------------------------------------------------------------------------------------------------
    def topics_and_lag(self) -> list[dict[str, Any]]:
        """Each topic with the extents of its queues, and each group that reads it: its places, its lag, what it has in hand."""
        return lag.by_topic(self._store.dictionary, self._places.queues, lag.extents(self._tail, self._store.next_offset))

    def lags(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(lag, messages in hand) of each consumer group in each topic, by (topic, group)."""
        return lag.totals(self._store.dictionary, self._places.queues, lag.extents(self._tail, self._store.next_offset))

    def figures(self) -> dict[str, int]:
        """What was done since the edge opened, and what is under way."""
        return {
            **self._counts,
            "unreadable": self._counts["unreadable"] + self._burials.unreadable,
            "dead": self._burials.dead,
            "replayed": self._burials.replayed,
            "polls_waiting": len(self._waiting),
            "tracked": sum(queue.tracked for queue in self._places.queues.values()),
            "tail_ops": self._tail.held_ops,
            "tail_gaps": self._tail.gaps,
            "journal_writes": self._ledger.writes,
            "journal_flushes": self._ledger.flushes,
        }

    # --- the end ------------------------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Polls that wait come back empty."""
        self._closing = True
        self._news.stop()

    async def close(self) -> None:
        """After the committer: what was accepted is written and flushed."""
        self.stop()
        await self._burials.close()
        await self._ledger.close()
        self._tail.close()
