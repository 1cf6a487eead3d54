"""The same Java program against a real RocketMQ 5.5.0 and against Escrow: `make parity-rocketmq`.

Each scene is played by RocketMQ's own Java client, unmodified, and gives a line of what could be seen. Where the two differ, and
the difference is meant (Escrow is stricter, or does not offer it), the scene says so; any other difference fails. The table in
docs/rocketmq-clients.md is what this prints.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.endpoint import quiet_port
from tests.support.live import live
from tests.support.players import Player, PlayerError, player
from tests.support.rocketmq import rocketmq

#: RocketMQ refuses polls that are much shorter.
AWAIT_S = "8"
Play = Callable[[Player, str], str]


@dataclass(frozen=True)
class Scene:
    """What is played, and why the two may differ; "" where they may not."""

    name: str
    play: Play
    differs: str = ""


def _consume(it: Player, topic: str, count: int) -> str:
    """What a new group gets, in order of the bodies, and whether anything is left."""
    it.do("simple", f"g-{topic}", topic, "*")
    found = it.receive_all(count) if count else []
    left = [message.body for message in it.receive(1)]
    return f"{' '.join(sorted(f'{each.body}#{each.attempt}' for each in found)) or 'nothing'}; then {' '.join(left) or 'nothing'}"


def commit(it: Player, topic: str) -> str:
    it.do("half", topic, "a", "unknown", "commit")
    return _consume(it, topic, 1)


def rollback(it: Player, topic: str) -> str:
    it.do("half", topic, "a", "unknown", "rollback")
    it.do("half", topic, "b", "unknown", "commit")
    return _consume(it, topic, 1)


def silent_commit(it: Player, topic: str) -> str:
    it.do("half", topic, f"a-{topic}", "commit", "silent")
    it.until("check", f"a-{topic}", patience_s=120)
    return _consume(it, topic, 1).replace(f"-{topic}", "")


def silent_rollback(it: Player, topic: str) -> str:
    it.do("half", topic, f"a-{topic}", "rollback", "silent")
    it.do("half", topic, "b", "unknown", "commit")
    it.until("check", f"a-{topic}", patience_s=120)
    return _consume(it, topic, 1)


def unknown_then_commit(it: Player, topic: str) -> str:
    it.do("half", topic, f"a-{topic}", "unknown,commit", "silent")
    it.until("check", f"a-{topic}", "commit", patience_s=240)
    unknowns = len(it.heard("check", f"a-{topic}", "unknown"))
    return f"asked {unknowns + 1} times; {_consume(it, topic, 1)}".replace(f"-{topic}", "")


def same_id(it: Player, topic: str) -> str:
    id, *_ = it.do("half", topic, "a", "unknown", "commit")
    it.do("simple", f"g-{topic}", topic, "*")
    return str(it.receive_all(1)[0].message_id == id)


def commit_twice(it: Player, topic: str) -> str:
    *_, number = it.do("half", topic, "a", "unknown", "commit")
    try:
        it.do("end", number, "commit")
    except PlayerError as error:
        return f"{error.kind}; {_consume(it, topic, 1)}"
    return f"taken; {_consume(it, topic, 1)}"


def commit_after_rollback(it: Player, topic: str) -> str:
    *_, number = it.do("half", topic, "a", "unknown", "rollback")
    it.do("half", topic, "b", "unknown", "commit")
    try:
        it.do("end", number, "commit")
        told = "taken"
    except PlayerError as error:
        told = error.kind
    it.do("simple", f"g-{topic}", topic, "*")
    bodies = {message.body for message in it.receive_all(1)} | {each.body for _ in range(2) for each in it.receive(8)}
    return f"{told}; {' '.join(sorted(bodies))}"


def normal(it: Player, topic: str) -> str:
    it.do("send", topic, "a", "red", "k")
    it.do("send", topic, "b", "blue", "k")
    it.do("simple", f"g-{topic}", topic, "red")
    message = it.receive_all(1)[0]
    return f"{message.body} {message.tag} {message.keys} #{message.attempt}"


def redelivery(it: Player, topic: str) -> str:
    it.do("send", topic, "a", "", "")
    it.do("simple", f"g-{topic}", topic, "*")
    first = it.receive_all(1, 10, ack=False)[0]
    second = it.receive_all(1, 10)[0]
    return f"#{first.attempt} #{second.attempt}, same id {first.message_id == second.message_id}"


def push(it: Player, topic: str) -> str:
    it.do("push", f"g-{topic}", topic, "*")
    it.do("send", topic, f"fail1-{topic}", "", "")
    it.do("half", topic, f"plain-{topic}", "unknown", "commit")
    it.until("push", f"plain-{topic}", patience_s=120)
    it.until("push", f"fail1-{topic}", times=2, patience_s=120)
    return f"attempts {' '.join(event.words[3] for event in it.heard('push', f'fail1-{topic}'))}"


def _kind(it: Player, topic: str, kind: str) -> str:
    try:
        it.do(kind, topic, "a")
    except PlayerError as error:
        return error.kind
    return "taken"


#: Seen now and then, on a busy machine: RocketMQ asks again before the first answer counts, takes both, and delivers both.
TWICE = "stricter: asked again before its first answer counted, RocketMQ delivers for each answer"
SCENES = (
    Scene("half, commit", commit),
    Scene("half, rollback", rollback),
    Scene("silent half, check answers commit", silent_commit, TWICE),
    Scene("silent half, check answers rollback", silent_rollback),
    Scene("silent half, check answers unknown, then commit", unknown_then_commit, TWICE),
    Scene("consumed under the producer's message id", same_id),
    Scene("commit twice", commit_twice, "an end that is said again is answered as the first; RocketMQ has forgotten the half"),
    Scene("commit after rollback", commit_after_rollback, "stricter: refused, and the rollback stays"),
    Scene("ordinary message, filter by tag", normal),
    Scene("not acknowledged: again, next attempt", redelivery),
    Scene("push consumer, a failure comes again", push),
    Scene("FIFO message", lambda it, topic: _kind(it, topic, "fifo"), "not offered: refused in words"),
    Scene("delayed message", lambda it, topic: _kind(it, topic, "delay"), "not offered: refused in words"),
)


def play_all(endpoints: str, home: Path) -> list[str]:
    """What each scene showed. A client of its own for each, so that none sees another's streams; a few at a time."""

    def play(number: int) -> str:
        scene, topic = SCENES[number], f"scene{number}"
        with player("java", endpoints, home / topic, environ={"PLAYER_AWAIT_S": AWAIT_S}) as it:
            it.do("producer", topic)
            return scene.play(it, topic)

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(play, range(len(SCENES))))


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        root = Path(scratch)
        topics = [f"scene{number}" for number in range(len(SCENES))]
        with rocketmq(root / "rocketmq", topics, [f"g-{topic}" for topic in topics]) as endpoints:
            theirs = play_all(endpoints, root / "rocketmq-clients")
        port = quiet_port()
        with live(root / "escrow", f"grpcPort={port}"):
            ours = play_all(f"127.0.0.1:{port}", root / "escrow-clients")
    print("| scene | RocketMQ 5.5.0 | Escrow | |\n|---|---|---|---|")
    wrong = 0
    for scene, their, our in zip(SCENES, theirs, ours, strict=True):
        same = their == our
        wrong += not same and not scene.differs
        print(f"| {scene.name} | {their} | {our} | {'same' if same else scene.differs or '**DIFFERS**'} |")
    print(f"parity.scenes {len(SCENES)}\nparity.unexplained {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
