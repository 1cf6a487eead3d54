"""Listings against a plain model: whatever is sent, ended, discarded, resumed, retained and reopened in whatever order, and however
far the index is behind, a list by any filter holds exactly the halves that a loop over the model finds.

A failure names its seed; `ESCROW_SEED=n` plays that one alone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from checker.policy import Policy
from store.edge.listing import half_files, index
from store.edge.listing.listing import Listing
from store.edge.listing.wanted import DISCARDED, ENDED, IN_DOUBT, OPEN, Wanted
from store.edge.store import End
from store.io.pages import EdgeSlot
from store.messages import Message
from store.records import OpKind, State, Via
from store.tables.ends import Verdict
from tests.support.seeds import seeds
from tests.support.service import SMALLEST, Service

SEEDS = seeds(6)
STEPS = 60
GROUPS, TOPICS = ("g", "orders", "orders-2"), ("t", "placed")
KEYS = ("", "k", "kk", "order-1", "order-17", "ö" * 130, "ö" * 130 + "x")
KINDS = (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.DISCARD_MAX, OpKind.DISCARD_EXPIRED, OpKind.RESUME)
MARK_OF = {
    OpKind.COMMIT: State.COMMITTED,
    OpKind.ROLLBACK: State.ROLLED_BACK,
    OpKind.DISCARD_MAX: State.DISCARDED_MAX,
    OpKind.DISCARD_EXPIRED: State.DISCARDED_EXPIRED,
}


@dataclass
class Known:
    group: str
    topic: str
    key: str
    stored_at_ms: int
    mark: int = 0
    attempts: int = 0


class Play:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.known: list[Known] = []
        self.service = Service(directory / "store", geometry=SMALLEST, policy=Policy(retention_s=24 * 3600))
        self.listing = self.opened()
        self.steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("step_")]

    def opened(self) -> Listing:
        return Listing(self.service.edge.directory, self.service.edge.dictionary)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.steps)()
            self.compare()
        self.listing.close()
        self.service.close()

    # --- what happens -------------------------------------------------------------------------------------------------------
    def step_send(self) -> None:
        choose = self.random.choice
        made = [Known(choose(GROUPS), choose(TOPICS), choose(KEYS), self.service.now_ms) for _ in range(self.random.randint(1, 40))]
        self.service.edge.prepare(
            [Message(each.group, each.topic, b"b", {"KEYS": each.key} if each.key else {}) for each in made], self.service.now_ms
        )
        self.known += made

    def step_time(self) -> None:
        self.service.now_ms += self.random.choice((1, 1000, 3_600_000, 20 * 3_600_000))

    def step_end(self) -> None:
        begin = self.service.edge.page[EdgeSlot.HALF_BEGIN]
        for _ in range(self.random.randint(1, 30) if len(self.known) > begin else 0):
            half_offset, kind = self.random.randrange(begin, len(self.known)), self.random.choice(KINDS)
            end = End(half_offset, kind, via=Via.OPERATOR)
            (answer,) = self.service.edge.end([end], self.service.now_ms)
            if answer.verdict is Verdict.ACCEPTED:
                self.known[half_offset].mark = int(MARK_OF.get(kind, 0))
                if kind == OpKind.RESUME:
                    self.known[half_offset].attempts = 0

    def step_ask(self) -> None:
        """Attempts are counted once the job has settled them."""
        self.step_settle()
        begin = self.service.edge.page[EdgeSlot.HALF_BEGIN]
        asked = [at for at in range(begin, len(self.known)) if not self.known[at].mark and self.random.random() < 0.3]
        if asked:
            self.service.edge.wait(self.service.edge.append_asked(asked, "m", self.service.now_ms))
            for half_offset in asked:
                self.known[half_offset].attempts += 1
        self.step_settle()

    def step_settle(self) -> None:
        self.service.settle()

    def step_advance(self) -> None:
        self.listing.index.advance(self.random.choice((lambda: True, lambda: False)))

    def step_tidy(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.listing.index.tidy()

    def step_retain(self) -> None:
        self.service.settle()
        self.service.retain(24 * 3600)
        self.listing.refresh()

    def step_reopen(self) -> None:
        self.listing.close()
        self.service.restart(clean=self.random.random() < 0.5, rebuild=self.random.random() < 0.5)
        self.listing = self.opened()

    # --- what must be found ---------------------------------------------------------------------------------------------------
    def wanted(self) -> Wanted:
        choose, maybe = self.random.choice, lambda values: self.random.choice(values) if self.random.random() < 0.4 else None
        times = [0, self.service.now_ms, *[each.stored_at_ms for each in self.known[-50:]]]
        ends = choose((OPEN, DISCARDED, IN_DOUBT, ENDED, IN_DOUBT | ENDED, frozenset({2})))
        return Wanted(
            ends, maybe((*GROUPS, "nobody")), maybe((*TOPICS, "nowhere")), maybe((*KEYS, "none", "k\x02")),
            maybe(("k", "order", "1", "ö", "orders-2")), maybe(times), maybe(times), maybe((0, 1, 2)), maybe((0, 1, 255)),
        )  # fmt: skip

    def compare(self) -> None:
        for _ in range(4):
            wanted, newest, limit = self.wanted(), self.random.random() < 0.5, self.random.choice((1, 3, 1000))
            begin = max(self.service.edge.page[EdgeSlot.HALF_BEGIN], self.service.edge.half_queue.begin)
            expected = [at for at in range(begin, len(self.known)) if matches(self.known[at], wanted)]
            settled = wanted.attempts_min is None and wanted.attempts_max is None
            if not settled:
                self.service.settle()
            assert self.paged(wanted, limit, newest) == (expected[::-1] if newest else expected), (wanted, newest, limit)
            whole = self.listing.page(wanted, 1, newest=newest)
            assert whole.matched == len(expected), wanted
        self.compare_summary()

    def paged(self, wanted: Wanted, limit: int, newest: bool) -> list[int]:
        found: list[int] = []
        at = None
        while True:
            page = self.listing.page(wanted, limit, newest=newest, at=at, enough=self.random.choice((lambda: True, lambda: False)))
            found += page.half_offsets
            at = page.following
            if at is None:
                return found

    def compare_summary(self) -> None:
        begin = max(self.service.edge.page[EdgeSlot.HALF_BEGIN], self.service.edge.half_queue.begin)
        there, summary = self.known[begin:], self.listing.summary()
        names = self.service.edge.dictionary.groups
        for group_no, count in enumerate(summary.pending.tolist()):
            pending = [each.stored_at_ms for each in there if each.group == names[group_no] and not each.mark]
            assert (count, int(summary.oldest_ms[group_no])) == (len(pending), min(pending, default=0))
        assert summary.discarded == sum(each.mark in DISCARDED for each in there)


def matches(known: Known, wanted: Wanted) -> bool:
    return (
        known.mark in wanted.ends
        and wanted.group in (None, known.group)
        and wanted.topic in (None, known.topic)
        and wanted.key in (None, known.key)
        and (wanted.text is None or any(wanted.text in each for each in (known.group, known.topic, known.key)))
        and (wanted.stored_from_ms is None or known.stored_at_ms >= wanted.stored_from_ms)
        and (wanted.stored_until_ms is None or known.stored_at_ms <= wanted.stored_until_ms)
        and (wanted.attempts_min is None or known.attempts >= wanted.attempts_min)
        and (wanted.attempts_max is None or known.attempts <= wanted.attempts_max)
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_listings_hold_what_the_model_holds(tmp_path, monkeypatch, seed):
    print(f"seed {seed}")
    monkeypatch.setattr(half_files, "SCAN_OFFSETS", 16)
    monkeypatch.setattr(index, "PIECE_ROWS", 64)
    Play(tmp_path, seed).run(STEPS)
