"""RocketMQ's own clients, unmodified, each a process that a test gives commands to (tests/rocketmq has their source).

with player("java", "127.0.0.1:8081", tmp_path) as it:
    it.do("producer", "orders")                          # topics, separated by commas
    it.do("half", "orders", "body", "commit", "silent")  # topic, body, answer to checks; at once: commit, rollback or silent
    it.until("check", "body")                            # an event, told by the client when it happened

Commands: producer · half → message_id, transaction_id (Java does not show it), number · end NUMBER OUTCOME ·
send TOPIC BODY TAG KEY → message_id · fifo, delay TOPIC BODY · simple, push GROUP TOPIC TAGS ·
receive MAX INVISIBLE_S → body|message_id|attempt|tag|keys of each · ack NUMBER · invisible NUMBER SECONDS · close.
Events: check BODY ANSWER ID · push BODY ID ATTEMPT.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.tools import missing, require_tool

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".clients"
KINDS = ("python", "java")
#: How long anything may take that is only waited for. No goal: this machine may be busy.
PATIENCE_S = 60.0


class PlayerError(Exception):
    """The client raised; `kind` is the name of its exception's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text = kind, text


class Received(NamedTuple):
    body: str
    message_id: str
    attempt: int
    tag: str
    keys: str


class Event(NamedTuple):
    words: tuple[str, ...]
    at_s: float


def command(kind: str, home: Path) -> list[str]:
    """What starts this client; skips the test, or fails it in CI, where it is not there."""
    if not (CLIENTS / f"{kind}.made").exists():
        missing(f"RocketMQ's {kind} client is not here: run make tools")
    if kind == "python":
        return [str(CLIENTS / "python" / "bin" / "python"), str(ROOT / "tests" / "rocketmq" / "python_player.py")]
    jvm = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}", f"-Drocketmq.log.root={home}")
    return [require_tool("java"), *jvm, "-cp", f"{CLIENTS / 'java'}:{CLIENTS / 'java'}/*", "Player"]


class Player:
    """One client process. Commands are answered one after the other; events come when they happen."""

    def __init__(
        self, kind: str, endpoints: str, home: Path, *, namespace: str = "", keys: tuple[str, str] = ("", ""), tls: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.events: list[Event] = []
        self._answers: list[tuple[str, ...]] = []
        self._news = threading.Condition()
        words = [*command(kind, home), endpoints, namespace, *keys, "true" if tls else "false"]
        self._log = (home / f"{kind}.err").open("w+")
        clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**clean, "HOME": str(home), **(environ or {})},
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.until("ready")
        except BaseException:
            self.__exit__()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *words = line.rstrip("\n").split("\t")
            with self._news:
                if kind == "!":
                    self.events.append(Event(tuple(words), time.monotonic()))
                elif kind == "=":
                    self._answers.append(tuple(words))
                self._news.notify_all()

    def _wait(self, true: Callable[[], object], what: str, patience_s: float) -> None:
        with self._news:
            found = self._news.wait_for(true, patience_s)
        if not found:
            self._log.seek(0)
            raise AssertionError(
                f"{self.kind}: waited {patience_s:.0f} s for {what}; heard {self.events}; {self._log.read()[-4000:]}"
            )

    def do(self, *words: object, patience_s: float = PATIENCE_S) -> tuple[str, ...]:
        """Give a command; what it answered. PlayerError where the client raised."""
        assert self.process.stdin is not None
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        self._wait(lambda: self._answers, f"the answer to {words}", patience_s)
        verdict, *rest = self._answers.pop(0)
        if verdict != "ok":
            raise PlayerError(*rest)
        return tuple(rest)

    def receive(self, count: int, invisible_s: int = 15) -> list[Received]:
        """What one call gives, which may be nothing."""
        parts = [each.split("|") for each in self.do("receive", max(count, 1), invisible_s)]
        return [Received(body, id, int(attempt), tag, keys) for body, id, attempt, tag, keys in parts]

    def receive_all(self, count: int, invisible_s: int = 60, *, ack: bool = True) -> list[Received]:
        """Until there are so many."""
        found: list[Received] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < deadline_s, f"{found}, of {count}"
            got = self.receive(count - len(found), invisible_s)
            for number in range(len(got) if ack else 0):
                self.do("ack", number)
            found += got
        return found

    def heard(self, *words: str) -> list[Event]:
        """Events that begin with these words."""
        return [event for event in list(self.events) if event.words[: len(words)] == words]

    def until(self, *words: str, times: int = 1, patience_s: float = PATIENCE_S) -> Event:
        """Until that has happened so often; the last one."""
        self._wait(lambda: len(self.heard(*words)) >= times, " ".join(words), patience_s)
        return self.heard(*words)[times - 1]

    def kill(self) -> None:
        """kill -9, and it is gone."""
        with self.process:
            self.process.kill()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()


@contextmanager
def player(kind: str, endpoints: str, home: Path, **rest: object) -> Iterator[Player]:
    home.mkdir(parents=True, exist_ok=True)
    with Player(kind, endpoints, home, **rest) as made:  # type: ignore[arg-type]
        yield made
