"""Consumption: consumer groups pull messages, acknowledge them, and get again what they did not. No transport: that is put on it.

    poll                hand-outs are written to the journal before the answer: attempts are exact after `kill -9`
    ack                 durable before it is answered; many callers share one flush
    change_visibility   more time, or back at once
    seek                the group goes elsewhere; what it had in hand is not its any more
    dead_letters, replay

What there is to read is `tail.py` (settled queues and the unsettled tail as one), what a group may have of it `group_queue.py`,
what is written down `journal.py`. At least once: a message comes again until it is acknowledged, or is a dead letter.

A group that has never read a topic begins where its first poll says (`start_positions.py`), and that is durable before the
first answer:
what is released afterwards is not missed, whatever happens. A group that waits for a topic which does not exist yet gets all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ingest.committing.committer import Committer
from ingest.consuming import lag
from ingest.consuming.dead_letters import Letter, Letters, append_again, bury, has_dead_letters, topic_of
from ingest.consuming.deliveries import DeadLetter, Delivery, delivery, parse_tags
from ingest.consuming.filters import Filters
from ingest.consuming.group_queue import ATTEMPTS_MAX, GroupQueue, Hand, Handed, TagFilter
from ingest.consuming.journal import Ledger
from ingest.consuming.poll_waiters import Waiting
from ingest.consuming.receipts import Receipt, ReceiptSealer
from ingest.consuming.settled_queues import Settled
from ingest.consuming.start_positions import EARLIEST, LATEST, offsets_at, parse_start
from ingest.consuming.tail import Tail
from ingest.errors import EdgeError, InvalidRequest
from runtime.clock import this_boot
from runtime.settings import Settings
from store.edge.store import EdgeStore
from store.errors import StoreError
from store.guarded_clock import GuardedClock
from store.naming import RESERVED_TOPICS, check_name
from store.read.readers import LogReader
from store.records import topic_of_key
from store.tables.delivery_cursors import Cursors
from store.tables.journals.consumers import ConsumerKind, ConsumerRecord, Consumers, Progress

CONSUMER_MAX_CHARACTERS: Final = 128
#: Groups that wait for topics which do not exist yet, remembered so that they get all of it.
EARLY_MAX: Final = 65_536
#: A dead letter that could not be stored is tried again after this.
BURY_AGAIN_MS: Final = 1_000
_NEVER_AGAIN: Final = ATTEMPTS_MAX + 1
_PASSED_OVER: Final = ("holes", "filtered", "unreadable", "retention")

#: Hears how many bytes are about to be held for somebody, and raises where that is too much.
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
        self._store, self._committer, self._settings, self._clock, self._refuse = store, committer, settings, clock, refuse
        self._loop, self._receipts = asyncio.get_running_loop(), receipts
        directory = store.directory
        self._tail = Tail(LogReader(directory), Settled(directory, cursors, this_boot() if boot is None else boot))
        self._queues: dict[tuple[int, int], GroupQueue] = {}
        consumers = Consumers(directory.root / "consumers", writable=True)
        self._recover(consumers)
        self._ledger = Ledger(consumers, committer.fail)
        self._letters = Letters(store, self._tail, lambda group_no, key: self._queues.get((group_no, key)))
        self._waiting, self._making, self._turn, self._polls_open = Waiting(), asyncio.Lock(), 0, 0
        self._filters = Filters(self._loop.time, lambda topic: store.dictionary.topic_no(topic) is not None)
        self._early: set[tuple[str, str]] = set()
        self._ends_seen: dict[str, int] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._replaying: set[Letter] = set()
        self._closing = self._called = self._reading = False
        self.trouble = ""
        self._counts = dict.fromkeys(("polls", "handed_out", "again", "done", "stale", "dead", "replayed", *_PASSED_OVER), 0)
        with contextlib.suppress(StoreError, IndexError):  # the job is just changing its files: at the next look
            self.look()

    def _recover(self, consumers: Consumers) -> None:
        """Progress of an earlier life. Where an older log was put in place (a restore), a group cannot have read beyond its end."""
        consumers.is_there, is_empty = self._is_there, not consumers.progress
        consumers.forget_removed()
        consumers.clip(self._store.next_offset)
        until_ms = self._clock.elapsed_ms() + self._settings.visibility_max_ms
        for (group_no, queue_key), progress in consumers.progress.items():
            self._queues[group_no, queue_key] = GroupQueue(
                group_no, queue_key, self._settings.look_ahead, progress, until_ms=until_ms
            )
        # Written anew as a whole: whatever of it was not flushed before the process died is durable now.
        if not is_empty:
            consumers.compact()

    # --- news ---------------------------------------------------------------------------------------------------------------------
    def published(self) -> None:
        """In the committer's thread or in the loop: something new is flushed. Calls that come before the event loop looked are one.
        While nobody polls, it need not look: whoever comes looks first (in this order, so that none falls between)."""
        if self._polls_open and not self._called and not self._closing:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._read_ops)

    def _read_ops(self) -> None:
        """Take the ops that were flushed into the tail, and wake who waits for their topics."""
        self._called = self._reading = False
        if self._closing:
            return
        try:
            grown, more = self._tail.look_at_ops()
            self.trouble = ""
        except (StoreError, IndexError) as error:  # files are just changing: the next look tries again
            self.trouble = str(error)
            return
        topics = self._store.dictionary.topics
        for topic_no in {topic_of_key(queue_key)[0] for queue_key in grown}:
            self._waiting.wake_topic(topics[topic_no])
        if more and not self._reading:
            self._reading = True
            self._loop.call_soon(self._read_ops)

    def look(self) -> None:
        """The job may have settled something: follow it, and wake who waits for what only the settlement could show."""
        self._tail.look_at_job()
        self._read_ops()
        for topic in self._waiting.topics():
            end = sum(self._tail.extent(queue_key)[1] for queue_key in self._queue_keys(topic))
            if self._ends_seen.get(topic) != end:
                self._waiting.wake_topic(topic)
            self._ends_seen[topic] = end
        for topic in self._ends_seen.keys() - set(self._waiting.topics()):
            del self._ends_seen[topic]

    def let_go(self) -> None:
        """Files were deleted: let go of them."""
        self._tail.let_go()

    def _queue_keys(self, topic: str) -> list[int]:
        """Keys of a topic's queues; none where it does not exist."""
        topic_no = self._store.dictionary.topic_no(topic)
        return [] if topic_no is None else lag.queue_keys(self._store.dictionary, topic_no)

    def _edition(self, queue_key: int) -> int:
        return self._store.dictionary.editions[topic_of_key(queue_key)[0]]

    def _is_there(self, queue_key: int, edition: int) -> bool:
        """Whether the topic of a queue is there, in this edition of its number. In any thread."""
        names, topic_no = self._store.dictionary, topic_of_key(queue_key)[0]
        return topic_no not in names.removed and (topic_no >= len(names.topics) or names.editions[topic_no] == edition)

    def forget_removed(self) -> None:
        """Topics were removed: so is what groups have done in them, and their numbers will be others'."""
        removed = self._store.dictionary.removed.keys()
        for place in [place for place in self._queues if topic_of_key(place[1])[0] in removed]:
            del self._queues[place]

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
            raise InvalidRequest(f"consumer: name yourself in 1 to {CONSUMER_MAX_CHARACTERS} characters")
        if max_messages < 1 or not wait_s >= 0:
            raise InvalidRequest("max: ask for at least 1, and wait_s for 0 or more")
        count = min(max_messages, self._settings.messages_per_poll_max)
        visibility_ms = self._visibility_ms(visibility_s, least_ms=1)
        ask = _Ask(topic, group, parse_tags(tags), parse_start(start, "from"), count, visibility_ms, hold)
        self._counts["polls"] += 1
        self._polls_open += 1
        try:
            self._read_ops()
            with self._filters.reading(topic, group, ask.wanted, consumer):
                return await self._poll(ask, min(wait_s, self._settings.poll_wait_max_ms / 1000))
        finally:
            self._polls_open -= 1

    def _check_names(self, topic: str, group: str) -> None:
        self._refuse("consumers")
        if topic in RESERVED_TOPICS:
            raise InvalidRequest(
                f"topic: {topic} is Escrow's own; nobody consumes it. Name the topic that messages are released in"
            )
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
            queues = await self._queues_of(ask.topic, ask.group, ask.begin)
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
            self._bury(topic, hand.group, hand.dying)
        if not hand.taken:
            self._note(hand.records)
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

    def _note(self, records: Sequence[ConsumerRecord]) -> None:
        """Write records that nobody waits for; lost, they are found out again."""
        if records:
            with contextlib.suppress(EdgeError):
                self._ledger.note(records, durable=False)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """The answer could not be written: its messages go to others at once, and were not handed out."""
        if deliveries:
            group = self._store.dictionary.groups[deliveries[0].handed.queue.group_no]
            self._give_back(deliveries[0].topic, group, [each.handed for each in deliveries])

    def _give_back(self, topic: str, group: str, taken: Sequence[Handed]) -> None:
        now_ms = self._clock.elapsed_ms()
        records = [handed.queue.put_back(handed, now_ms) for handed in taken if self._is_current(handed.queue)]
        self._note([record for record in records if record is not None])
        self._waiting.wake(topic, group)

    def _is_current(self, queue: GroupQueue) -> bool:
        return self._queues.get((queue.group_no, queue.queue_key)) is queue

    # --- where a group begins -----------------------------------------------------------------------------------------------------
    async def _queues_of(self, topic: str, group: str, begin: str | int) -> list[GroupQueue]:
        """The group's places in a topic, made and durable where it has not read it before; none where it does not exist yet."""
        queue_keys = self._queue_keys(topic)
        if not queue_keys:
            if len(self._early) < EARLY_MAX:
                self._early.add((topic, group))
            return []
        group_no = self._store.dictionary.group_no(group)
        queues = [self._queues.get((group_no, queue_key)) for queue_key in queue_keys] if group_no is not None else [None]
        known = [queue for queue in queues if queue is not None]
        return known if len(known) == len(queues) else await self._begin(topic, group, queue_keys, begin)

    async def _begin(self, topic: str, group: str, queue_keys: list[int], begin: str | int) -> list[GroupQueue]:
        async with self._making:
            group_no: int = await self._committer.call(partial(self._store.add_group, group))
            missing = [queue_key for queue_key in queue_keys if (group_no, queue_key) not in self._queues]
            if missing:
                begin = EARLIEST if (topic, group) in self._early else begin
                offsets = await self._offsets(missing, begin)
                await self._ledger.note(self._records(ConsumerKind.OFFSET, group_no, offsets), durable=True)
                if self._queue_keys(topic) != queue_keys:  # it was removed meanwhile
                    return []
                self._early.discard((topic, group))
                for queue_key, offset in offsets.items():
                    self._queues[group_no, queue_key] = self._new_queue(group_no, queue_key, offset)
            return [queue for queue_key in queue_keys if (queue := self._queues.get((group_no, queue_key))) is not None]

    def _records(self, kind: ConsumerKind, group_no: int, offsets: dict[int, int]) -> list[ConsumerRecord]:
        return [ConsumerRecord(kind, group_no, key, offset, edition=self._edition(key)) for key, offset in offsets.items()]

    def _new_queue(self, group_no: int, queue_key: int, offset: int) -> GroupQueue:
        progress = Progress(offset, edition=self._edition(queue_key))
        return GroupQueue(group_no, queue_key, self._settings.look_ahead, progress)

    async def _offsets(self, queue_keys: Sequence[int], begin: str | int) -> dict[int, int]:
        """The queue_offset in each queue that `begin` means now."""
        begins = {queue_key: self._tail.extent(queue_key)[0] for queue_key in queue_keys}
        if begin == EARLIEST:
            return begins
        ends = {queue_key: self._store.next_offset.get(queue_key, 0) for queue_key in queue_keys}
        if begin == LATEST or not isinstance(begin, int):
            return ends
        found = await self._loop.run_in_executor(None, offsets_at, self._store.directory, queue_keys, begin)
        return {queue_key: max(begins[queue_key], found.get(queue_key, ends[queue_key])) for queue_key in queue_keys}

    async def seek(self, topic: str, group: str, to: str) -> dict[int, int]:
        """Put the group elsewhere in a topic, durably; where it stands now: queue_id → queue_offset."""
        self._check_names(topic, group)
        target, queue_keys = parse_start(to, "to"), self._queue_keys(topic)
        if not queue_keys:
            raise InvalidRequest(f"topic: {topic} does not exist yet: there is nothing to seek in")
        async with self._making:
            group_no: int = await self._committer.call(partial(self._store.add_group, group))
            offsets = await self._offsets(queue_keys, target)
            if self._queue_keys(topic) != queue_keys:
                raise InvalidRequest(f"topic: {topic} was removed meanwhile: there is nothing to seek in")
            for queue_key, offset in offsets.items():
                known = self._queues.get((group_no, queue_key)) or self._new_queue(group_no, queue_key, 0)
                self._queues[group_no, queue_key] = known.put_at(offset)
            await self._ledger.note(self._records(ConsumerKind.SEEK, group_no, offsets), durable=True)
        self._waiting.wake(topic, group)
        return {topic_of_key(queue_key)[1]: offset for queue_key, offset in offsets.items()}

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
            raise InvalidRequest(
                f"receipts: {len(receipts)} in one request; between 1 and {most} (maxMessagesPerRequest) are taken"
            )
        opened = [self._receipts.open(text, f"receipts[{number}]") for number, text in enumerate(receipts)]
        group_no, queue_keys = self._store.dictionary.group_no(group), set(self._queue_keys(topic))
        holds = self._store.lineage.holds
        return [
            (
                self._queues.get((receipt.group_no, receipt.queue_key))
                if sealed
                and receipt.group_no == group_no
                and receipt.queue_key in queue_keys
                and holds(receipt.tag, receipt.queue_key, receipt.queue_offset)
                else None,
                receipt,
            )
            for receipt, sealed in opened
        ]

    # --- dead letters -------------------------------------------------------------------------------------------------------------
    def _bury(self, topic: str, group: str, dying: list[Handed]) -> None:
        task = self._loop.create_task(self._bury_all(topic, group, dying))
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    async def _bury_all(self, topic: str, group: str, dying: list[Handed]) -> None:
        """Each a call of its own: one that cannot be stored does not hold up the others."""
        for handed in dying:
            queue, queue_offset = handed.queue, handed.queue_offset
            try:
                await self._committer.call(partial(bury, self._store, group, [handed], self._clock.now_ms()))
            except (EdgeError, StoreError) as error:
                self.trouble = f"a dead letter of group {group} could not be stored: {error}"
                queue.not_buried(queue_offset, self._clock.elapsed_ms() + BURY_AGAIN_MS)
                continue
            self._counts["dead"] += 1
            if self._is_current(queue):
                self._note(queue.finish(queue_offset))
        self._waiting.wake(topic, group)

    async def condemn(self, topic: str, group: str, receipt: str) -> bool:
        """Make a dead letter of a message in hand, durably, whatever its attempts; False where the receipt is stale."""
        ((queue, opened),) = self._open(topic, group, [receipt])
        if queue is None or not has_dead_letters(topic):
            return False
        place = queue.condemn(opened.queue_offset, opened.attempt, opened.visible_at_ms)
        if place is not None:
            try:
                frame = self._tail.frame(queue.queue_key, *place)
            except StoreError:
                queue.not_buried(opened.queue_offset, opened.visible_at_ms)
                raise
            if frame is None:
                self._counts["unreadable"] += 1
                self._note(queue.finish(opened.queue_offset))
            else:
                dying = Handed(queue, opened.queue_offset, opened.attempt, opened.visible_at_ms, frame)
                await self._bury_all(topic, group, [dying])
        return queue.is_done(opened.queue_offset)

    async def dead_letters(self, group: str, *, after: str = "", max_letters: int = 32) -> tuple[list[DeadLetter], str | None]:
        """Open dead letters of a group, oldest first, and the `after` for the next ones; None where these are the last."""
        if max_letters < 1:
            raise InvalidRequest("max: ask for at least 1")
        self._read_ops()
        return self._letters.page(group, after, min(max_letters, self._settings.messages_per_poll_max))

    async def replay(self, group: str, ids: Sequence[str]) -> int:
        """Give open dead letters to the group again, where they came from, and close them; how many."""
        self._refuse("replays")
        if not 1 <= len(ids) <= self._settings.max_messages_per_request:
            raise InvalidRequest(f"ids: {len(ids)} in one request; send between 1 and {self._settings.max_messages_per_request}")
        self._read_ops()
        found = {letter: opened for letter, opened in self._letters.find(group, ids).items() if letter not in self._replaying}
        if not found:
            return 0
        self._replaying.update(found)
        try:
            group_no: int = await self._committer.call(partial(self._store.add_group, group))
            again = partial(append_again, self._store, group, list(found.values()), self._clock.now_ms())
            await self._committer.call(again)
            await self._ledger.note(self._close_letters(group_no, list(found)), durable=True)
        finally:
            self._replaying.difference_update(found)
        self._counts["replayed"] += len(found)
        return len(found)

    def _close_letters(self, group_no: int, letters: list[Letter]) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        for letter in letters:
            queue = self._queues.get((group_no, letter.queue_key))
            if topic_of_key(letter.queue_key)[0] in self._store.dictionary.removed:
                continue
            if queue is None:
                queue = self._queues[group_no, letter.queue_key] = self._new_queue(group_no, letter.queue_key, 0)
            records += queue.finish(letter.queue_offset)
        return records

    def dead_letter_count(self, group: str) -> int:
        """How many dead letters of a group are open."""
        return self._letters.count(group)

    # --- looking ------------------------------------------------------------------------------------------------------------------
    def topics_and_lag(self) -> list[dict[str, Any]]:
        """Each topic with the extents of its queues, and each group that reads it: its places, its lag, what it has in hand."""
        return lag.by_topic(self._store.dictionary, self._queues, lag.extents(self._tail, self._store.next_offset))

    def lags(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(lag, messages in hand) of each consumer group in each topic, by (topic, group)."""
        return lag.totals(self._store.dictionary, self._queues, lag.extents(self._tail, self._store.next_offset))

    def figures(self) -> dict[str, int]:
        """What was done since the edge opened, and what is under way."""
        return {
            **self._counts,
            "polls_waiting": len(self._waiting),
            "tracked": sum(queue.tracked for queue in self._queues.values()),
            "tail_ops": self._tail.held_ops,
            "tail_gaps": self._tail.gaps,
            "journal_writes": self._ledger.writes,
            "journal_flushes": self._ledger.flushes,
        }

    # --- the end ------------------------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Polls that wait come back empty."""
        self._closing = True
        self._waiting.wake_all()

    async def close(self) -> None:
        """After the committer: what was accepted is written and flushed."""
        self.stop()
        await asyncio.gather(*self._burials, return_exceptions=True)
        await self._ledger.close()
        self._tail.close()
