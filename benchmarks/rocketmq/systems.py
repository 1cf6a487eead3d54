"""Both systems as processes with directories of their own on the loopback: started, killed, at rest, and what they use.

RocketMQ runs from its jars with its own defaults but for what is written here: addresses, directories, the flush mode and,
where a workload says so, the times of check-back. Escrow is `escrow run` with Spark and its defaults but for the same. While one
is measured the other one rests: RocketMQ is stopped by a signal then, because it burns a core when idle; Escrow waits by itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from benchmarks.rocketmq.processes import Talker, extent_bytes, tree
from escrow import Api
from escrow.errors import EscrowError
from store.io.pages import EDGE_MAGIC, EDGE_PUBLISHED, JOB_MAGIC, JOB_PUBLISHED, EdgeSlot, JobSlot, PublishedPage
from streaming.errors import JobCannotStart
from streaming.spark.jars import resolve
from tests.campaigns.chaos.service import Service, until
from tests.support.endpoint import quiet_port

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parents[1] / "build" / "rocketmq"
#: The broker ships with 8 GiB, the name server with 4: this machine has 24 for both systems and their clients.
BROKER_HEAP: Final = ("-Xms2g", "-Xmx2g", "-XX:+UseG1GC")
NAMESRV_HEAP: Final = ("-Xms256m", "-Xmx256m", "-XX:+UseG1GC")
CLIENT_HEAP: Final = ("-Xms512m", "-Xmx1g", "-XX:+UseG1GC")
BOOT_S: Final = 180.0
#: RocketMQ on a new JDK wants to look into its classes.
OPENS: Final = ("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED")


#: A broker that rests (SIGSTOP) for two minutes would be taken for dead, and its topics would be gone for a while.
NEVER_DEAD: Final = {"scanNotActiveBrokerInterval": 86_400_000, "serverChannelMaxIdleTimeSeconds": 86_400}


class System(Protocol):
    """What a workload needs of either."""

    name: str

    def start(self, settings: Mapping[str, str] | None = None, *, wait: bool = True) -> float: ...
    def wait_ready(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def pids(self) -> list[int]: ...
    def client(self, **options: object) -> Talker: ...
    def stored_bytes(self) -> int: ...
    def settled(self) -> None: ...
    def finish(self) -> None: ...


# --- RocketMQ ------------------------------------------------------------------------------------------------------------------
def resolve_jars() -> str:
    """The class path: RocketMQ's jars by Maven, and our client compiled against them. Done once."""
    jars, classes = BUILD / "jars", BUILD / "classes"
    try:
        resolve((HERE / "pom.xml").read_bytes(), (HERE / "pom.lock").read_bytes(), jars)
    except JobCannotStart as error:
        raise SystemExit(str(error)) from None
    compiled, source = classes / "Client.class", HERE / "Client.java"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        classes.mkdir(parents=True, exist_ok=True)
        _run("javac", "-nowarn", "-Xlint:none", "-cp", f"{jars}/*", "-d", str(classes), str(source))
    return f"{classes}:{jars}/*"


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise SystemExit(
            f"{command[0]} is not installed: the comparison needs a JDK and Maven (apt install default-jdk maven)"
        ) from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


class Rocket:
    """A name server and a broker."""

    def __init__(self, root: Path, class_path: str, flush: str) -> None:
        self.name, self.root, self._class_path, self.flush = f"RocketMQ {flush}", root, class_path, flush
        self._ports = _ports(10)
        self._namesrv: subprocess.Popen[str] | None = None
        self._broker: subprocess.Popen[str] | None = None
        self._clients = 0
        root.mkdir(parents=True)

    @property
    def namesrv_address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def port(self) -> int:
        return self._ports[4]

    def start(self, settings: Mapping[str, str] | None = None, *, wait: bool = True) -> float:
        """When the broker's process was started (seconds since 1970). It is up now, or with wait=False coming up."""
        if self._namesrv is None:
            conf = self._write("namesrv.conf", {"listenPort": self._ports[0], "bindAddress": "127.0.0.1", **NEVER_DEAD})
            self._namesrv = self._java("namesrv", NAMESRV_HEAP, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf))
            self._wait("namesrv", self._namesrv)
        conf = self._write("broker.conf", self._broker_conf(settings or {}))
        started = time.time()
        self._broker = self._java("broker", BROKER_HEAP, "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf))
        if wait:
            self.wait_ready()
        return started

    def wait_ready(self) -> None:
        assert self._broker is not None
        self._wait("broker", self._broker)

    def _broker_conf(self, settings: Mapping[str, str]) -> dict[str, object]:
        return {
            "brokerClusterName": "bench",
            "brokerName": "bench",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": self._ports[7],
            "namesrvAddr": self.namesrv_address,
            "storePathRootDir": self.root / "store",
            "storePathCommitLog": self.root / "store" / "commitlog",
            "flushDiskType": {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}[self.flush],
            **settings,
        }

    def _write(self, name: str, values: Mapping[str, object]) -> Path:
        path = self.root / name
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        return path

    def _java(self, name: str, heap: Sequence[str], *words: str) -> subprocess.Popen[str]:
        home = f"-Duser.home={self.root / name}"
        command = ["java", *heap, *OPENS, home, f"-Drocketmq.home.dir={self.root}", "-cp", self._class_path, *words]
        with open(self.root / f"{name}.out", "w") as said:
            return subprocess.Popen(command, stdout=said, stderr=said, stdin=subprocess.DEVNULL, text=True)

    def _wait(self, name: str, process: subprocess.Popen[str]) -> None:
        said = self.root / f"{name}.out"

        def up() -> bool:
            if process.poll() is not None:
                raise SystemExit(f"{name} ended: {said.read_text()[-3000:]}")
            return "boot success" in said.read_text()

        until(up, f"RocketMQ's {name} is up", BOOT_S)

    def pids(self) -> list[int]:
        return [process.pid for process in (self._namesrv, self._broker) if process is not None]

    def client(self, **options: object) -> Talker:
        """With a topic and a group of its own, unless they are named."""
        self._clients += 1
        topic, group = options.get("topic", f"topic{self._clients}"), options.get("group", f"group{self._clients}")
        home = self.root / "client"
        command = ["java", *CLIENT_HEAP, f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}", "-cp", self._class_path]
        command += ["Client", self.namesrv_address, str(group), str(topic)]
        return Talker(command, self.root / "client.out")

    def stored_bytes(self) -> int:
        """Commit log, consume queues and index, of a broker that is quiet."""
        return sum(extent_bytes(self.root / "store" / name) for name in ("commitlog", "consumequeue", "index"))

    def settled(self) -> None:
        """The client program waits until its commits are visible. What is behind that: ops, put together for 3 s."""
        time.sleep(4.0)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Stopped where it stands, so that it takes no processor time from the other."""
        pids = self.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9` of the broker; the name server, which keeps nothing, goes on."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        if self._broker is not None:
            self._broker.send_signal(number)
            self._broker.wait(120)
            self._broker = None

    def finish(self) -> None:
        for process in (self._broker, self._namesrv):
            if process is not None:
                process.kill()
                process.wait()
        self._broker = self._namesrv = None


def _ports(span: int) -> list[int]:
    """Free ports in a row: a broker takes its own, that minus 2, and one for its replicas."""
    while True:
        first = quiet_port()
        with suppress(OSError):
            for port in range(first, first + span):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return list(range(first, first + span))


# --- Escrow --------------------------------------------------------------------------------------------------------------------
class Escrow:
    """`escrow run`: supervisor, edge, Spark."""

    name = "Escrow"

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, quiet_port()
        self._service: Service | None = None
        self._clients = 0
        root.mkdir(parents=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, settings: Mapping[str, str] | None = None, *, wait: bool = True) -> float:
        """When its process was started; without `wait` it is still coming up."""
        flags = [f"{name}={value}" for name, value in (settings or {}).items()]
        started = time.time()
        self._service = Service(self.root / "data", (f"listenPort={self.port}", "jobMetricsPort=0", *flags))
        if wait:
            self.wait_ready()
        return started

    def wait_ready(self) -> None:
        assert self._service is not None
        self._service.wait_ready()

    def pids(self) -> list[int]:
        return [] if self._service is None else tree(self._service.process.pid)

    def client(self, **options: object) -> Talker:
        self._clients += 1
        given = {"topic": f"topic{self._clients}", "group": f"group{self._clients}", **options}
        words = [f"{name}={value}" for name, value in given.items()]
        return Talker([sys.executable, "-m", "benchmarks.rocketmq.client", self.url, *words], self.root / "client.out")

    def status(self) -> dict[str, Any]:
        with Api(self.url) as api:
            return api.status()

    def settled(self) -> None:
        """Spark has settled all that was acknowledged."""

        def behind() -> bool:
            try:
                job = self.status()["job"]
            except EscrowError:
                return False
            return bool(job["halves_behind"] + job["ops_behind"] == 0)

        until(behind, "everything is settled")

    def stored_bytes(self) -> int:
        """Everything in the store of a service that is quiet. Dedup keys lie scattered in their table: 32 bytes for each half.
        Rows are changed in place: a word of 4 bytes for each op that was settled."""
        store = self.root / "data" / "store"
        halves = PublishedPage(store / EDGE_PUBLISHED, EDGE_MAGIC)[EdgeSlot.HALF_END]
        return extent_bytes(store, without=("dedup", "presence")) + 32 * halves + 4 * self.op_cursor()

    def op_cursor(self) -> int:
        """How many ops Spark has settled."""
        return PublishedPage(self.root / "data" / "store" / JOB_PUBLISHED, JOB_MAGIC)[JobSlot.OP_CURSOR]

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._service = None

    def kill(self) -> None:
        """`kill -9` of every process of it at once."""
        if self._service is not None:
            for pid in tree(self._service.process.pid):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._service.finish()
            self._service = None

    def finish(self) -> None:
        if self._service is not None:
            self._service.finish()
            self._service = None
