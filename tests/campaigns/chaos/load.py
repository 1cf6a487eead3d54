"""The load of a campaign: producers, members who answer check requests, an operator, a consumer; and the ledger of what they heard.

Everybody behaves as a real client would. An unanswered half send may have happened or not: with a dedup_key it is sent again
until it is answered, without one it is given up, and whoever is asked about it later says rollback. An unanswered end is said again
until it is answered. What was answered is a fact, and no later answer may contradict it.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from store.errors import StoreError
from store.read.readers import LogReader, TopicReader, open_readers
from store.records import topic_of_key
from tests.support.edge_client import EdgeClient, RemoteError

GROUPS = ("orders", "stock")
#: A group that nobody answers for: its silent halves stay pending to the end.
ABSENT = "absent"
TOPICS = ("paid", "shipped", "counted")
ENDED = {"commit": "COMMITTED", "rollback": "ROLLED_BACK"}
FOR_EVER = frozenset(ENDED.values())
OPPOSITE = {"commit": "rollback", "rollback": "commit"}
#: What producers do with a half once it is acknowledged, and how often.
PLANS = {
    "end": 40,  # at once
    "late": 10,  # seconds later, while it may be asked about
    "silent": 22,  # never: check-back settles it, after up to two times UNKNOWN
    "twice": 8,  # and the same again
    "contradict": 8,  # and then the opposite
    "both": 4,  # both outcomes in one request
    "race": 4,  # both outcomes over two connections at once
    "for_ever": 4,  # UNKNOWN for ever: discarded after transactionCheckMax
}
SIZES = (1, 1, 1, 2, 3, 8)


@dataclass(slots=True)
class Tx:
    """One transaction as its producer knows it. `final` is what an answer has said it became."""

    ident: int
    group: str
    topic: str
    batch: int
    plan: str
    truth: str
    body: str = ""
    id: str = ""
    unknowns: int = 0
    given_up: bool = False
    final: str = ""
    accepted: int = 0
    resumed: bool = False


@dataclass(slots=True)
class Ledger:
    """What is known; shared by all threads."""

    txs: list[Tx] = field(default_factory=list)
    batches: int = 0
    messages: dict[str, bool] = field(default_factory=dict)  # body → acknowledged
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: Any = field(default_factory=threading.Lock)

    def begin(self, group: str, topics: Sequence[str], plans: Sequence[str], rng: random.Random) -> list[Tx]:
        """New transactions, to be sent as one batch."""
        with self.lock:
            made = []
            for topic, plan in zip(topics, plans, strict=True):
                truth = rng.choice(("commit", "commit", "rollback"))
                tx = Tx(len(self.txs), group, topic, self.batches, plan, truth, unknowns=rng.choice((0, 0, 1, 2)))
                tx.body = json.dumps({"i": tx.ident, "pad": "x" * rng.choice((0, 10, 200, 900))})
                self.txs.append(tx)
                made.append(tx)
            self.batches += 1
            return made

    def heard(self, tx: Tx, outcome: str, answer: dict[str, str]) -> None:
        """An answer to an end: a fact, or a contradiction."""
        verdict = answer["verdict"]
        with self.lock:
            self.counts[f"{outcome} {verdict}"] += 1
            if verdict == "accepted":
                state = ENDED.get(outcome, "PREPARED")
                tx.accepted += state in FOR_EVER
            else:
                state = answer["state"]
            if (verdict == "refused" and answer["reason"] != "discarded") or tx.accepted > 1:
                self._contradiction(tx, outcome, answer)
            if state in FOR_EVER:
                if (tx.final in FOR_EVER and tx.final != state) or (tx.final.startswith("DISCARDED") and not tx.resumed):
                    self._contradiction(tx, outcome, answer)
                tx.final = state
            elif state.startswith("DISCARDED"):
                if tx.final in FOR_EVER and not tx.resumed:
                    self._contradiction(tx, outcome, answer)
                tx.final = tx.final or state

    def _contradiction(self, tx: Tx, outcome: str, answer: dict[str, str]) -> None:
        self.problems.append(f"{outcome} was answered {answer}, but this was known: {tx}")


class Link:
    """A connection that is made again, and requests that are repeated where that is right."""

    def __init__(self, port: int, ledger: Ledger, stopping: threading.Event) -> None:
        self._port, self._ledger, self._stopping = port, ledger, stopping
        self._client: EdgeClient | None = None

    def once(self, work: Callable[[EdgeClient], Any]) -> Any:
        """The answer; None when there was none: nobody knows whether it happened. Connecting is tried until it works."""
        client = self._connected()
        if client is None:
            return None
        try:
            return work(client)
        except RemoteError as error:
            self._ledger.counts[f"refused: {error.code}"] += 1
        except (OSError, ValueError, http.client.HTTPException):
            self._ledger.counts["unanswered"] += 1
        self.close()
        return None

    def insist(self, work: Callable[[EdgeClient], Any]) -> Any:
        """The answer, however often it takes; None only when the campaign is over."""
        while not self._stopping.is_set():
            answer = self.once(work)
            if answer is not None:
                return answer
            time.sleep(0.02)
        return None

    def _connected(self) -> EdgeClient | None:
        while self._client is None and not self._stopping.is_set():
            try:
                self._client = EdgeClient(self._port, timeout_s=30)
            except OSError:
                time.sleep(0.05)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def say(link: Link, ledger: Ledger, ends: Sequence[tuple[Tx, str]], *, from_check: bool = False) -> None:
    """Ends in one request, repeated until it is answered."""
    wanted = [{"group": tx.group, "id": tx.id, "outcome": outcome, "from_check": from_check} for tx, outcome in ends]
    answer = link.insist(lambda client: client.ends(wanted)) if wanted else None
    if answer is not None:
        for (tx, outcome), each in zip(ends, answer, strict=True):
            ledger.heard(tx, outcome, each)


class Actor(threading.Thread):
    """A thread with a connection and chance of its own. An error of its own is a problem of the campaign."""

    def __init__(self, name: str, port: int, ledger: Ledger, seed: int, stopping: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self.ledger, self.rng, self.stopping = ledger, random.Random(f"{seed} {name}"), stopping
        self.port, self.link = port, Link(port, ledger, stopping)

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.step()
        except Exception as error:
            self.ledger.problems.append(f"{self.name}: {type(error).__name__}: {error}")
            raise
        finally:
            self.link.close()

    def step(self) -> None:
        raise NotImplementedError


class Producer(Actor):
    """Sends halves, alone and in batches, and ends them as planned. `sending` off: only what is left to say is said."""

    def __init__(self, *rest: Any, pause_s: float = 0.08) -> None:
        super().__init__(*rest)
        self.sending, self.idle, self._pause_s = True, threading.Event(), pause_s
        self._later: list[tuple[float, Tx]] = []

    def step(self) -> None:
        self._say_what_is_due()
        if not self.sending:
            if not self._later:
                self.idle.set()
            time.sleep(0.02)
            return
        if self.rng.random() < 0.05:
            self._send_message()
        self._send_halves()
        time.sleep(self.rng.uniform(0, 2 * self._pause_s))

    def _say_what_is_due(self) -> None:
        now_s = time.monotonic()
        due = [tx for at_s, tx in self._later if at_s <= now_s or not self.sending]
        self._later = [(at_s, tx) for at_s, tx in self._later if at_s > now_s and self.sending]
        say(self.link, self.ledger, [(tx, tx.truth) for tx in due])

    def _send_message(self) -> None:
        """An ordinary message, visible without a transaction."""
        body = json.dumps({"m": f"{self.name} {self.rng.random()}"})
        self.ledger.messages[body] = False
        if self.link.once(lambda client: client.send([{"group": "plain", "topic": self.rng.choice(TOPICS), "text": body}])):
            self.ledger.messages[body] = True

    def _send_halves(self) -> None:
        rng = self.rng
        group = ABSENT if rng.random() < 0.02 else rng.choice(GROUPS)
        count = rng.choice(SIZES)
        plans = ["silent"] * count if group == ABSENT else rng.choices(list(PLANS), list(PLANS.values()), k=count)
        txs = self.ledger.begin(group, rng.choices(TOPICS, k=count), plans, rng)
        messages = [{"group": tx.group, "topic": tx.topic, "text": tx.body} for tx in txs]
        if rng.random() < 0.4:
            for tx, message in zip(txs, messages, strict=True):
                message["dedup_key"] = f"tx {tx.ident}"
            ids = self.link.insist(lambda client: client.prepare(messages))
        else:
            ids = self.link.once(lambda client: client.prepare(messages))
        with self.ledger.lock:
            for number, tx in enumerate(txs):
                tx.id, tx.given_up = (ids[number], False) if ids else (tx.id, True)
        if ids:
            self._end_as_planned(txs)

    def _end_as_planned(self, txs: list[Tx]) -> None:
        """In any order, some in one request."""
        self.rng.shuffle(txs)
        link, ledger, rng = self.link, self.ledger, self.rng
        say(link, ledger, [(tx, tx.truth) for tx in txs if tx.plan in ("end", "twice", "contradict")])
        say(link, ledger, [(tx, tx.truth) for tx in txs if tx.plan == "twice"])
        say(link, ledger, [(tx, OPPOSITE[tx.truth]) for tx in txs if tx.plan == "contradict"])
        for tx in txs:
            if tx.plan == "both":
                say(link, ledger, [(tx, tx.truth), (tx, OPPOSITE[tx.truth])])
            elif tx.plan == "race":
                self._race(tx)
            elif tx.plan == "late":
                self._later.append((time.monotonic() + rng.uniform(0.5, 6), tx))

    def _race(self, tx: Tx) -> None:
        other = Link(self.port, self.ledger, self.stopping)
        rival = threading.Thread(target=say, args=(other, self.ledger, [(tx, OPPOSITE[tx.truth])]))
        rival.start()
        say(self.link, self.ledger, [(tx, tx.truth)])
        rival.join()
        other.close()


class Member(Actor):
    """Answers check requests of one group."""

    def __init__(self, *rest: Any, group: str) -> None:
        super().__init__(*rest)
        self._group = group

    def step(self) -> None:
        checks = self.link.once(lambda client: client.poll_checks(self._group, self.name, max=64, wait_s=1.0))
        ends = []
        for check in checks or []:
            tx = self.ledger.txs[json.loads(check["body"])["i"]]
            if tx.group != self._group or check["body"].decode() != tx.body or (tx.id and tx.id != check["id"]):
                self.ledger.problems.append(f"{self.name} was asked about {check}, which is {tx}")
            tx.id = tx.id or check["id"]
            ends.append((tx, self._answer(tx)))
            self.ledger.counts["asked"] += 1
        say(self.link, self.ledger, ends, from_check=True)

    def _answer(self, tx: Tx) -> str:
        if tx.given_up:
            return "rollback"  # its send was never answered, so the local transaction never ran
        if tx.plan == "for_ever":
            return "unknown"
        if tx.unknowns:
            tx.unknowns -= 1
            return "unknown"
        return tx.truth


class Operator(Actor):
    """Looks for discarded transactions and resumes them; from then on their members know what became of them."""

    def step(self) -> None:
        for tx in [tx for tx in self.ledger.txs if tx.plan == "for_ever" and tx.id and tx.final not in FOR_EVER]:
            if self.stopping.wait(0.05):
                return
            found = self.link.once(partial(EdgeClient.transaction, id=tx.id))
            if found is not None and found["state"].startswith("DISCARDED"):
                self.ledger.counts["discards seen"] += 1
                self._resume(tx)
        self.stopping.wait(0.5)

    def _resume(self, tx: Tx) -> None:
        tx.resumed = True
        answers = self.link.insist(lambda client: client.act("resume", [tx.id], "chaos"))
        if answers is not None:
            if answers[0]["result"] != "accepted":
                self.ledger.problems.append(f"the resume was answered {answers[0]}: {tx}")
            tx.plan, tx.unknowns = "silent", 0
            self.ledger.counts["resumed"] += 1


class Consumer(Actor):
    """Reads every topic as it grows. What was seen once, at some place, is there for good."""

    def __init__(self, *rest: Any, store: Path) -> None:
        super().__init__(*rest)
        self._store = store
        self._readers: tuple[LogReader, TopicReader] | None = None
        self.seen: dict[tuple[int, int], str] = {}
        self._at: Counter[int] = Counter()

    def step(self) -> None:
        try:
            for key, number, body in self._news():
                self.seen[key, number] = body
                self._at[key] = number + 1
        except (StoreError, OSError, IndexError) as error:  # the job is just changing files: the next look opens them anew
            self.ledger.counts[f"consumer: {type(error).__name__}"] += 1
            self._close()
        self.stopping.wait(0.1)

    def _news(self) -> Iterator[tuple[int, int, str]]:
        if self._readers is None:
            _, log, topics, _ = open_readers(self._store)
            if topics is None:
                return
            self._readers = log, topics
        log, topics = self._readers
        topics.follow()
        for key in topics.catalogue.queue_keys():
            first, entries = topics.topic_entries(*topic_of_key(key), self._at[key], 4096)
            for number, entry in enumerate(entries, first):
                if not entry["size_bytes"]:
                    self.ledger.problems.append(f"the consumer found a hole in queue {topic_of_key(key)} at {number}")
                    continue
                yield key, number, log.frame(entry).body.decode()

    def _close(self) -> None:
        if self._readers is not None:
            for reader in self._readers:
                with suppress(Exception):
                    reader.close()
            self._readers = None
