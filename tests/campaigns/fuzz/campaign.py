"""The fuzzer: hostile requests (hostile.py) against a real endpoint with a real job beside it; then nothing may be broken or left.

python -m tests.campaigns.fuzz.campaign --requests 100000 --seed 7        (make fuzz REQUESTS=100000 SEED=7)

each answer          no 5xx; a refusal is problem+json with a code, 429 has Retry-After; whole requests are answered, each once
each burst           a valid transaction goes through afterwards
at the end           same process; connections, requests, bodies, polls, files and threads are what they were; memory in bounds;
                     SIGTERM ends it in order; `verify` finds nothing; no token and no unforeseen error in any log
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ingest.auth import token_file
from store.inspect.verify.store import verify
from tests.campaigns.fuzz import hostile
from tests.campaigns.fuzz.hostile import Case, Pool
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import PATIENCE_S, Endpoint, until, until_idle
from tests.support.standin import Standin

FLAGS = (
    "commitLogSegmentSize=64MiB", "logQueueEntriesPerFile=1000000", "queuesPerTopic=2", "maxBodySize=64KiB",
    "maxMessagesPerRequest=64", f"maxRequestSize={hostile.MAX_REQUEST_BYTES}", "pollWaitMax=500ms", "headerTimeout=20s",
    "requestTimeout=20s", "maxDeliveries=2", "maxConnections=512", "transactionTimeOut=1s", "transactionCheckInterval=1s",
)  # fmt: skip
CONNECTIONS = 32
BURST = 500
#: How long to listen for an answer to what may have none.
QUIET_S = 0.05
#: What the store's state (names, topics, marks of halves) and the allocator may take beyond the baseline.
GROWTH_MAX_BYTES = 48 << 20
EXAMPLES = 5


class Wrong(Exception):
    """An answer, or none, that must not be."""


@dataclass(slots=True)
class Outcome:
    """Figures of a campaign."""

    seed: int
    requests: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    routes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    #: RssAnon after the warm-up and at the end.
    memory: tuple[int, int] = (0, 0)
    stored: int = 0


# --- answers --------------------------------------------------------------------------------------------------------------------
def judge(status: int, headers: dict[bytes, bytes], body: bytes, method: str) -> None:
    """Wrong unless a client may be answered so."""
    if status >= 500 or status < 200:
        raise Wrong(f"status {status}: {body[:300]!r}")
    if method == "HEAD":
        return
    media = headers.get(b"content-type", b"")
    if status >= 400:
        if media != b"application/problem+json":
            raise Wrong(f"status {status} as {media!r}")
        problem = json.loads(body)
        if problem["status"] != status or not problem["code"] or not problem["title"] or not problem["detail"]:
            raise Wrong(f"no whole problem: {problem}")
        if status == 429 and int(headers.get(b"retry-after", b"0")) < 1:
            raise Wrong("429 without Retry-After")
    elif media == b"application/json":
        json.loads(body)
    elif media == b"application/msgpack":
        msgspec.msgpack.decode(body)
    elif media in (b"text/html; charset=utf-8", b"text/javascript; charset=utf-8"):
        if b"content-security-policy" not in headers:
            raise Wrong("a page without its policy")
    elif not media.startswith((b"text/plain", b"application/openmetrics-text", b"application/octet-stream")):
        raise Wrong(f"status {status} as {media!r}")


async def read_answer(reader: asyncio.StreamReader, method: str) -> tuple[int, bool]:
    """(status, whether the connection goes on) of the next answer; EOFError where there is none."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        version, code = first.split(b" ")[:2]
        if version != b"HTTP/1.1":
            raise Wrong(f"not HTTP: {first!r}")
        if code != b"100":
            break
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    length = int(headers[b"content-length"])
    body = await reader.readexactly(length) if method != "HEAD" else b""
    judge(int(code), headers, body, method)
    return int(code), headers.get(b"connection", b"").lower() != b"close"


class Player:
    """Plays cases one after the other; whole requests share a connection."""

    def __init__(self, port: int, outcome: Outcome) -> None:
        self._port, self._outcome = port, outcome
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def play(self, case: Case) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await (self._play_whole(case) if case.answers else self._play_broken(case))
        except TimeoutError:
            raise Wrong("no answer, and no end") from None
        except (OSError, EOFError) as error:
            raise Wrong(f"hung up on: {error!r}") from None
        except (KeyError, ValueError) as error:
            raise Wrong(f"not an answer: {error!r}") from None

    async def _play_whole(self, case: Case) -> None:
        reused = self._kept is not None
        try:
            await self._ask(case)
        except (ConnectionError, EOFError):
            if not reused:
                raise
            await self.close()  # it had been idle for too long
            await self._ask(case)

    async def _ask(self, case: Case) -> None:
        reader, writer = self._kept = self._kept or await self._connect()
        goes_on = True
        with suppress(ConnectionError):  # refused before everything was sent: the answer tells
            await self._send(writer, case)
        for at in range(case.answers or 0):
            status, goes_on = await read_answer(reader, case.methods[at])
            self._outcome.answers[status] += 1
        if not goes_on:
            await self.close()

    async def _play_broken(self, case: Case) -> None:
        """Whatever comes must be an answer; that none comes is no fault."""
        reader, writer = await self._connect()
        try:
            with suppress(ConnectionError):
                await self._send(writer, case)
            if case.end == "read":
                # Where bytes were spoilt, the method is what they say now.
                first = "HEAD" if b"".join(case.pieces).startswith(b"HEAD") else case.methods[0]
                with suppress(ConnectionError, EOFError, TimeoutError):
                    for method in (first, *case.methods[1:], *["?"] * 100):
                        async with asyncio.timeout(QUIET_S):
                            status, _ = await read_answer(reader, method)
                        self._outcome.answers[status] += 1
        finally:
            await _end(writer, hard=case.end == "reset")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)

    async def _send(self, writer: asyncio.StreamWriter, case: Case) -> None:
        for piece in case.pieces:
            writer.write(piece)
            await writer.drain()
            if case.pause_s:
                await asyncio.sleep(case.pause_s)

    async def close(self) -> None:
        if self._kept is not None:
            await _end(self._kept[1])
            self._kept = None


async def _end(writer: asyncio.StreamWriter, *, hard: bool = False) -> None:
    if hard:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


# --- the campaign ---------------------------------------------------------------------------------------------------------------
class Campaign:
    """One endpoint, one seed."""

    def __init__(self, data: Path, seed: int) -> None:
        self.data, self.seed = data, seed
        self.outcome = Outcome(seed)
        self.token = token_file.add(
            data / "keys" / "tokens.toml", "fuzzer", ["*"], ["*"], operator=True, metrics=True, made_at="2026-01-02T03:04:05Z"
        )
        self.wrongs: list[str] = []
        self._number = 0

    def run(self, requests: int) -> Outcome:
        began_s = time.monotonic()
        # The job first makes its files when the edge has made the store.
        with Endpoint(self.data, *FLAGS) as self.endpoint, Standin(self.data, *FLAGS):
            pid = self.endpoint.process.pid
            self.pool = self._fill()
            self._play_bursts(min(requests // 5, 4000))
            before = self._held()
            self._play_bursts(requests)
            after = self._held()
            assert after[1:] == before[1:], f"sockets, other descriptors: {before[1:]} before, {after[1:]} afterwards"
            self.outcome.memory = before[0], after[0]
            growth = after[0] - before[0]
            assert growth <= GROWTH_MAX_BYTES, f"grew by {growth >> 20} MiB, from {before[0] >> 20} MiB"
            assert (self.endpoint.process.pid, self.endpoint.process.poll()) == (pid, None)
            self._end_in_order()
        self.outcome.seconds = time.monotonic() - began_s
        return self.outcome

    def _held(self) -> tuple[int, int, int]:
        """(private memory, sockets, other descriptors) once nobody else is there."""
        with EdgeClient(self.endpoint.port, token=self.token) as client:
            until_idle(client)
            self.outcome.stored = client.status()["half_end"]
            return self.endpoint.private_bytes(), *self.endpoint.files()

    def _end_in_order(self) -> None:
        code, said = self.endpoint.stop()
        assert (code, said) == (0, "")
        report = verify(self.data / "store")
        assert report.problems == [], report.problems[:5]
        log = self.endpoint.log()
        assert self.token not in log
        assert self.token.rsplit("_", 1)[1] not in log
        assert "ERROR" not in log, log[-3000:]

    def _fill(self) -> Pool:
        """Transactions, messages in hand and dead letters: what a client may know, and spoil."""
        pool = Pool(self.token)
        with EdgeClient(self.endpoint.port, token=self.token) as client:
            for group in hostile.GROUPS:
                pool.ids += client.prepare([{"group": group, "topic": topic, "text": "x"} for topic in hostile.TOPICS[:3]] * 4)
            for id in pool.ids[::3]:
                for group in hostile.GROUPS:
                    client.end(group, id, "commit")
            client.send([{"group": "stock", "topic": "t", "text": str(number)} for number in range(8)])
            until(lambda: self._take(client, pool))
        return pool

    def _take(self, client: EdgeClient, pool: Pool) -> bool:
        """Poll until something has become a dead letter of `readers`."""
        pool.receipts += [each["receipt"] for each in client.consume("t", visibility_s=0.01)]
        pool.receipts += [each["receipt"] for each in client.consume("paid", group="stock")]
        found = client.call("GET", "/v1/groups/readers/dead-letters")["dead_letters"]
        pool.letters = [letter["id"] for letter in found]
        return len(found) >= 4

    def _play_bursts(self, requests: int) -> None:
        stop = self.outcome.requests + requests
        while self.outcome.requests < stop:
            asyncio.run(self._burst(min(BURST, stop - self.outcome.requests)))
            assert not self.wrongs, "\n\n".join([f"SEED={self.seed}", *self.wrongs[:EXAMPLES]])
            self._still_serves()

    def _still_serves(self) -> None:
        with EdgeClient(self.endpoint.port, token=self.token) as client:
            (id,) = client.prepare([{"group": "valid", "topic": "valid", "text": "x"}])
            assert client.end("valid", id, "commit")["verdict"] == "accepted"
            (message,) = client.consume("valid", "valid", wait_s=5)
            assert client.ack("valid", [message["receipt"]], "valid") == ["done"]

    async def _burst(self, requests: int) -> None:
        stop = self.outcome.requests + requests

        async def work() -> None:
            player = Player(self.endpoint.port, self.outcome)
            try:
                while self.outcome.requests < stop and len(self.wrongs) < EXAMPLES:
                    await self._next(player)
            finally:
                await player.close()

        async with asyncio.TaskGroup() as group:
            for _ in range(CONNECTIONS):
                group.create_task(work())

    async def _next(self, player: Player) -> None:
        case = hostile.make(self.seed, self._number, self.pool)
        self._number += 1
        self.outcome.requests += case.requests
        self.outcome.kinds[case.kind] += case.requests
        self.outcome.routes[case.route] += case.requests
        try:
            await player.play(case)
        except Wrong as error:
            sent = b"".join(case.pieces)
            self.wrongs.append(f"case {case.number} ({case.kind}, {case.route}): {error}\n{sent[:1500]!r} ({len(sent)} bytes)")
            await player.close()


def report(outcome: Outcome) -> None:
    before, after = (part / (1 << 20) for part in outcome.memory)
    print(
        f"SEED={outcome.seed}: {outcome.requests} requests in {outcome.seconds:.0f} s ({outcome.requests / outcome.seconds:.0f}/s)"
    )
    print(f"load {os.getloadavg()[0]:.1f}; private memory {before:.1f} MiB after the warm-up, {after:.1f} MiB at the end")
    print("answers:", ", ".join(f"{status}: {count}" for status, count in sorted(outcome.answers.items())))
    print("kinds:", ", ".join(f"{kind}: {count}" for kind, count in sorted(outcome.kinds.items())))
    print(f"halves stored: {outcome.stored}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.fuzz.campaign")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(argv)
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    print(f"SEED={seed}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="escrow-fuzz-"))
    try:
        report(Campaign(place / "data", seed).run(given.requests))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
