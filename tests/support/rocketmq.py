"""A real RocketMQ: a name server, and a broker with its proxy in one process, from Maven's jars (tests/rocketmq/server/pom.xml).

with rocketmq(directory) as endpoints:      # for RocketMQ 5's clients
    …
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.support.endpoint import quiet_port
from tests.support.players import CLIENTS

#: Java takes its time where the machine is busy.
START_S = 240.0
#: Checks come soon, as `tests.support.live` has them.
BROKER = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    "enableMixedMessageType": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(64 << 20),
    "diskMaxUsedSpaceRatio": "99",
    "fileReservedTime": "72",
}
_OPENED = ("java.base/java.lang", "java.base/java.nio", "java.base/sun.nio.ch", "java.base/java.util", "java.base/java.io")


def java(home: Path, main: str, *arguments: str, heap: str = "512m") -> list[str]:
    opened = [f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED] + ["--add-exports=java.base/sun.nio.ch=ALL-UNNAMED"]
    size = (f"-Xmx{heap}", f"-Xms{heap}", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=512m", f"-Duser.home={home}")
    return ["java", *size, *opened, f"-Drocketmq.home.dir={home}", "-cp", f"{CLIENTS / 'server'}/*", main, *arguments]


@contextmanager
def _process(home: Path, name: str, command: Sequence[str]) -> Iterator[None]:
    environ = {**os.environ, "ROCKETMQ_HOME": str(home), "HOME": str(home)}
    with (home / f"{name}.out").open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environ) as process:
        try:
            yield
        finally:
            process.kill()


def _until_listening(port: int, log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on {port} after {START_S:.0f} s: {log.read_text()[-4000:]}")


@contextmanager
def rocketmq(home: Path, topics: Sequence[str], groups: Sequence[str]) -> Iterator[str]:
    """Its proxy's address, once it serves these topics, each for messages of every type, and these consumer groups."""
    home.mkdir(parents=True, exist_ok=True)
    names, broker, proxy, remoting = (quiet_port() for _ in range(4))
    (home / "namesrv.conf").write_text(f"listenPort={names}\n")
    own = {**BROKER, "listenPort": str(broker), "namesrvAddr": f"127.0.0.1:{names}", "storePathRootDir": str(home / "store")}
    (home / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in own.items()))
    settings = {
        "proxyMode": "LOCAL",
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": proxy,
        "remotingListenPort": remoting,
    }
    (home / "proxy.json").write_text(json.dumps({**settings, "namesrvAddr": f"127.0.0.1:{names}"}))
    with ExitStack() as stack:
        start = java(home, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(home / "namesrv.conf"), heap="128m")
        stack.enter_context(_process(home, "namesrv", start))
        _until_listening(names, home / "namesrv.out")
        files = ("-bc", str(home / "broker.conf"), "-pc", str(home / "proxy.json"))
        start = java(home, "org.apache.rocketmq.proxy.ProxyStartup", "-n", f"127.0.0.1:{names}", "-pm", "local", *files)
        stack.enter_context(_process(home, "proxy", start))
        _until_listening(proxy, home / "proxy.out")
        asked: list[tuple[str, ...]] = [("updateTopic", "-t", topic, "-a", "+message.type=MIXED") for topic in topics]
        asked += [("updateSubGroup", "-g", group) for group in groups]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda words: _admin(home, names, *words), asked))
        yield f"127.0.0.1:{proxy}"


def _admin(home: Path, names: int, *words: str) -> None:
    """The broker may not have told the name server of itself yet: again until it has."""
    given = (*words, "-n", f"127.0.0.1:{names}", "-c", "DefaultCluster")
    command = java(home, "org.apache.rocketmq.tools.command.MQAdminStartup", *given, heap="128m")
    environ = {**os.environ, "ROCKETMQ_HOME": str(home), "HOME": str(home)}
    deadline_s = time.monotonic() + START_S
    while True:
        told = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=START_S, check=False)
        if "success" in told.stdout:
            return
        heard = told.stdout + told.stderr
        assert "not supported" not in heard, heard
        assert time.monotonic() < deadline_s, heard
