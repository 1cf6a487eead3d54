"""One token does its worst beside a well-behaved one.

python -m tests.campaigns.tenants.campaign --minutes 10 --seed 7          (make tenants MINUTES=10 SEED=7)

The whole service runs with real Spark and the usual limit of 1,024 open files. First the neighbour alone, then beside the attacker:

neighbour    no request fails, nothing it committed is missing, p99 at most five times what it was alone
service      the same processes at the end; it stops in order; `verify` finds nothing

The attacker's process is nice: both share two processors, and what it takes there says nothing about the service.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ingest.auth import token_file
from store.inspect.verify.store import verify
from tests.campaigns.chaos.service import Service
from tests.support.endpoint import quiet_port

ROOT = Path(__file__).parents[3]
FILES = 1024
RATIO_MAX = 5.0
ALONE_S = 60.0
FLAGS = (
    "listenPort=0", "jobMetricsPort=0", "transactionTimeOut=6s", "transactionCheckInterval=30s",
    "tokenRequestsMax=200", "tokenBytesMax=4MiB",
)  # fmt: skip
MADE_AT = "2026-01-02T03:04:05Z"


@dataclass(slots=True)
class Outcome:
    seed: int
    alone: dict[str, Any] = field(default_factory=dict)
    beside: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, int] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        return p99(self.beside["times_ms"]) / p99(self.alone["times_ms"])


def p99(times_ms: list[float]) -> float:
    return sorted(times_ms)[max(0, int(len(times_ms) * 0.99) - 1)]


class Tenants:
    """Two tokens at one service, each used by a process of its own."""

    def __init__(self, data: Path, seed: int) -> None:
        self.data, self.outcome = data, Outcome(seed)
        file = data / "keys" / "tokens.toml"
        self._good = self._token(file, "orders", ["orders:order-*"], ["order-*:billing"])
        self._evil = self._token(file, "evil", ["evil*:evil*"], ["evil*:evil*"])

    @staticmethod
    def _token(file: Path, name: str, produce: list[str], consume: list[str]) -> str:
        return token_file.add(file, name, produce, consume, operator=False, metrics=False, made_at=MADE_AT)

    def play(self, port: int, grpc_port: int, alone_s: float, beside_s: float) -> Outcome:
        """The neighbour alone, then both."""
        outcome = self.outcome
        outcome.alone = self._finished(self._neighbour(port, alone_s))
        arguments = (str(port), str(grpc_port), self._evil, str(beside_s + 5), str(outcome.seed))
        attacker = _start("tests.campaigns.tenants.attacker", *arguments, nice=19)
        try:
            outcome.beside = self._finished(self._neighbour(port, beside_s))
            outcome.answers = self._finished(attacker)
        finally:
            attacker.kill()
            attacker.wait()
        return outcome

    def _neighbour(self, port: int, seconds: float) -> subprocess.Popen[str]:
        return _start("tests.campaigns.tenants.neighbour", str(port), self._good, str(seconds))

    @staticmethod
    def _finished(process: subprocess.Popen[str]) -> dict[str, Any]:
        said, _ = process.communicate()
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(said)
        return found


def _start(module: str, *arguments: str, nice: int = 0) -> subprocess.Popen[str]:
    command = ["nice", "-n", str(nice), sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def judge(outcome: Outcome) -> None:
    for name, figures in (("alone", outcome.alone), ("beside the attacker", outcome.beside)):
        assert figures["errors"] == {}, f"{name}: {figures['errors']}"
        assert figures["seen"] == figures["sent"] > 0, f"{name}: {figures['sent']} sent, {figures['seen']} seen"
    assert not [kind for kind in outcome.answers if kind.endswith(" 500")], outcome.answers
    assert [kind for kind in outcome.answers if kind == "foreign 403"], outcome.answers
    assert not [kind for kind in outcome.answers if kind == "foreign 200"], outcome.answers


def report(outcome: Outcome) -> None:
    for kind, count in outcome.answers.items():
        print(f"  {count:>9,} {kind}")
    print(f"tenants.sent {outcome.beside['sent']}")
    print(f"tenants.errors {sum(outcome.beside['errors'].values())}")
    print(f"tenants.p99_alone_ms {p99(outcome.alone['times_ms']):.2f}")
    print(f"tenants.p99_beside_ms {p99(outcome.beside['times_ms']):.2f}")
    print(f"tenants.p99_ratio {outcome.ratio:.2f}")


def campaign(data: Path, minutes: float, seed: int) -> Outcome:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    tenants, grpc_port = Tenants(data, seed), quiet_port()
    service = Service(data, (*FLAGS, f"grpcPort={grpc_port}"))
    try:
        state = service.wait_ready()
        outcome = tenants.play(state["edge"]["port"], grpc_port, ALONE_S, minutes * 60)
        after = service.state()
        report(outcome)
        assert (after["edge"]["pid"], after["job"]["pid"]) == (state["edge"]["pid"], state["job"]["pid"]), "a process was restarted"
        assert service.stop()[0] == 0
    finally:
        service.finish()
    problems = verify(data / "store").problems
    assert problems == [], problems[:5]
    judge(outcome)
    assert outcome.ratio <= RATIO_MAX, f"p99 is {outcome.ratio:.1f} times what it was alone"
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given = parser.parse_args()
    print(f"SEED={given.seed}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="escrow-tenants-"))
    try:
        campaign(root / "data", given.minutes, given.seed)
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
