"""Kafka mode under test: topics of its own on a real broker, producers and consumers that know docs/kafka.md only, job processes.

Halves and ops are written with kafka-python, by the documented headers; nothing here uses the project's own code for that.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from runtime.processes import kill_session, session_members
from tests.support.kafka import SASL_PASSWORD, SASL_USER, Cluster, connector_dir

DEADLINE_S = 180.0
_NUMBERS = itertools.count(1)
Place = tuple[int, int]


class Job:
    """One driver process, with everything that it starts."""

    def __init__(self, directory: Path, flags: Iterable[str], shift_file: Path) -> None:
        words = [word for flag in [f"dataDir={directory}", *flags] for word in ("--set", flag)]
        command = [sys.executable, "-m", "tests.support.kafka_job", str(shift_file), *words]
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.lines = directory, list[dict[str, Any]]()
        self._err = (directory / "stderr").open("ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._err, start_new_session=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    @property
    def ready(self) -> bool:
        return any(line.get("ready") for line in self.lines)

    def said(self, text: str) -> bool:
        return any(text in line.get("notice", "") for line in self.lines)

    def wait_ready(self) -> Job:
        self.wait(lambda: self.ready)
        return self

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.tail()
            assert time.monotonic() < end, self.tail()
            time.sleep(0.05)

    def tail(self) -> str:
        logs = [self.directory / "stderr", *sorted((self.directory / "logs").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs if log.exists())

    def kill(self) -> None:
        """kill -9 of the driver, its Java and its Python workers."""
        kill_session(self.process.pid)
        self.process.wait(30)
        self._done()  # also of one that ended by itself

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        kill_session(self.process.pid)
        self._done()
        return status

    def _done(self) -> None:
        self._reader.join(10)
        self._err.close()
        if self.process.stdout is not None:
            self.process.stdout.close()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


class KafkaWorld:
    """Use as a context: whatever happens, no process is left."""

    def __init__(self, cluster: Cluster, partitions: int = 1, flags: Iterable[str] = (), *, sasl: bool = False) -> None:
        """`sasl`: the job logs in, with a password from a file."""
        self.cluster, self.name = cluster, f"w{next(_NUMBERS)}-{os.getpid()}"
        self.root = Path(tempfile.mkdtemp(prefix="escrow-kafka-world-"))
        self.shift_file = self.root / "shift"
        names = {
            name: f"{self.name}.{name.lower()}" for name in ("Half", "Op", "Redo", "Check", "Discard", "Lease", "Ends", "Keys")
        }
        self.half, self.op, self.redo, self.check, self.discard, self.lease, self.ends, self.keys = names.values()
        copies = min(3, len(cluster.brokers))
        self.check_prefix = f"{self.name}-check-"
        self.flags = [
            "mode=kafka",
            *(self._login() if sasl else [f"kafkaBootstrapServers={cluster.bootstrap}"]),
            *(f"kafka{name}Topic={topic}" for name, topic in names.items()),
            f"kafkaPartitions={partitions}",
            f"kafkaReplication={copies}",
            f"kafkaMinInsync={max(1, copies - 1)}",
            f"kafkaTransactionalIdPrefix={self.name}-",
            f"kafkaCheckGroupPrefix={self.check_prefix}",
            f"kafkaLeaseGroup={self.name}-lease",
            f"kafkaJarsDir={connector_dir()}",
            "jobMetricsPort=0",
            "tranStateTableMapedFileSize=240000",
            "sparkDriverMemory=768MiB",
            *flags,
        ]
        self.jobs: list[Job] = []
        self._producer: Any = None

    def _login(self) -> list[str]:
        secret = self.root / "password"
        secret.write_text(f"{SASL_PASSWORD}\n")
        return [
            f"kafkaBootstrapServers={self.cluster.sasl_bootstrap}",
            "kafkaSecurityProtocol=SASL_PLAINTEXT",
            "kafkaSaslMechanism=PLAIN",
            f"kafkaSaslUsername={SASL_USER}",
            f"kafkaSaslPasswordFile={secret}",
        ]

    def __enter__(self) -> KafkaWorld:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self.jobs:
            job.kill()
        if self._producer is not None:
            self._producer.close(timeout=5)
        shutil.rmtree(self.root, ignore_errors=True)

    # --- drivers ---
    def start(self, directory: str = "data", flags: Iterable[str] = (), *, wait: bool = True) -> Job:
        job = Job(self.root / directory, [*self.flags, *flags], self.shift_file)
        self.jobs.append(job)
        return job.wait_ready() if wait else job

    @property
    def ahead_s(self) -> int:
        """By how much the job's clock is ahead of the broker's."""
        return int(self.shift_file.read_text()) // 1000 if self.shift_file.exists() else 0

    def advance(self, seconds: int) -> None:
        """The job's clock jumps ahead (steady time too)."""
        temporary = self.shift_file.with_suffix(".new")
        temporary.write_text(str(1000 * (self.ahead_s + seconds)))
        temporary.replace(self.shift_file)

    # --- producers ---
    @property
    def producer(self) -> Any:
        if self._producer is None:
            self._producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap, acks="all", linger_ms=1)
        return self._producer

    def send_half(
        self,
        body: bytes | None,
        topic: str,
        group: str = "orders",
        key: bytes | None = None,
        partition: int | None = 0,
        **headers: str,
    ) -> Any:
        """A half on its way; `.get()` says where."""
        ours = {"escrow-group": group, "escrow-topic": topic, **{name.replace("_", "-"): value for name, value in headers.items()}}
        encoded = [(name, value.encode()) for name, value in ours.items()]
        return self.producer.send(self.half, key=key, value=body, partition=partition, headers=encoded)

    def prepare(self, body: bytes | None, topic: str, **options: Any) -> Place:
        done = self.send_half(body, topic, **options).get(60)
        return done.partition, done.offset

    def send_op(self, place: Place, kind: str, group: str | None = "orders", via: str = "producer") -> Any:
        headers = {"escrow-op": kind, "escrow-half-offset": str(place[1]), "escrow-via": via}
        if group is not None:
            headers["escrow-group"] = group
        encoded = [(name, value.encode()) for name, value in headers.items()]
        return self.producer.send(self.op, value=b"", partition=place[0], headers=encoded)

    def say(self, place: Place, kind: str, **options: Any) -> int:
        offset: int = self.send_op(place, kind, **options).get(60).offset
        return offset

    # --- consumers ---
    def released(self, topic: str) -> list[Any]:
        return self.cluster.read_all(topic)

    def await_released(self, topic: str, count: int, jobs: Iterable[Job] = ()) -> list[Any]:
        """All that a read_committed consumer sees, once there are `count` of them (more is for the test to find)."""
        return self.await_that(lambda: self.released(topic), lambda found: len(found) >= count, jobs)

    def await_that(self, look: Callable[[], Any], good: Callable[[Any], bool], jobs: Iterable[Job] = ()) -> Any:
        end = time.monotonic() + DEADLINE_S
        while not good(found := look()):
            watched = list(jobs) or self.jobs[-1:]
            for job in watched:
                assert job.alive, job.tail()
            assert time.monotonic() < end, f"{found!r}"[:2000] + watched[-1].tail()
            time.sleep(0.1)
        return found


def bodies(messages: Iterable[Any]) -> Counter[bytes]:
    return Counter(message.value() for message in messages)


def processes(session: int, mark: str) -> list[int]:
    """Members of a session whose command line has the mark."""
    return [pid for pid in session_members(session) if mark in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended
        return ""
