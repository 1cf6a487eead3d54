"""What ``escrow doctor`` looks at. Each function looks at one thing and tells what it found, with the remedy.

machine       what there is without any settings: Python, packages, Java, memory, limits, temporary files
installation  what the settings name: data directory, store, keys, tokens, TLS, clock, ports, Kafka, the running service
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import socket
import ssl
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from escrow.api import Api
from escrow.errors import EscrowError
from runtime.settings import Settings
from runtime.supervisor import STATE_FILE, java_problem


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what it is, what it is like, and what to do if that is not right."""

    level: Level
    what: str
    says: str
    remedy: str = ""


#: Beyond this a flush makes every acknowledgement slow: a disk with a write cache that is protected, or an SSD, takes 0.1 to 5 ms.
FLUSH_SLOW_MS: Final = 20.0
FLUSHES: Final = 15
SPACE_BESIDE_BYTES: Final = 256 << 20
MEMORY_BESIDE_BYTES: Final = 512 << 20
FILES_BESIDE: Final = 512
ANSWER_S: Final = 3.0
_VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
_REMOTE: Final = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "afs")


# --- the machine --------------------------------------------------------------------------------------------------------------
def machine(settings: Settings | None) -> Iterator[Finding]:
    """What needs no settings; memory and limits are held against them where there are any."""
    yield _python()
    yield _packages()
    yield _java()
    yield _memory((settings or Settings()).spark_driver_memory_bytes)
    yield _open_files((settings or Settings()).max_connections)
    yield _temporary()


def _python() -> Finding:
    version = ".".join(str(number) for number in sys.version_info[:3])
    return Finding(Level.OK, "Python", f"{version} ({sys.executable})")


def _packages() -> Finding:
    """Those that the server needs, and the versions that the project fixes."""
    wrong = []
    try:
        requirements = importlib.metadata.requires("escrow-mq-server") or []
    except importlib.metadata.PackageNotFoundError:
        return Finding(
            Level.FAIL, "packages", "escrow-mq-server is not installed here", "in a checkout: make venv, or pip install ./sdk ."
        )
    for requirement in requirements:
        name, _, rest = requirement.partition(";")
        if "extra" in rest:
            continue
        bare = re.split(r"[^A-Za-z0-9_.-]", name.strip())[0]
        try:
            have = importlib.metadata.version(bare)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{bare} is missing")
            continue
        if "==" in name and have != (wanted := name.split("==")[1].strip()):
            wrong.append(f"{bare} is {have}, not {wanted}")
    if wrong:
        return Finding(Level.FAIL, "packages", ", ".join(wrong), f"in a checkout: pip install ./sdk . (into {sys.prefix})")
    return Finding(Level.OK, "packages", f"PySpark {importlib.metadata.version('pyspark')} and the rest of what the server needs")


def _java() -> Finding:
    problem = java_problem(os.environ)
    if problem:
        says, _, remedy = problem.partition(": ")
        return Finding(Level.FAIL, "Java", says, remedy)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    return Finding(Level.OK, "Java", told.splitlines()[0] if told else java)


def _memory(driver_bytes: int) -> Finding:
    available = _memory_bytes()
    needed = driver_bytes + MEMORY_BESIDE_BYTES
    if available is None:
        return Finding(Level.WARN, "memory", "cannot be told on this system", f"have {_size(needed)} free")
    if available < needed:
        remedy = "stop something, add memory, or lower sparkDriverMemory"
        return Finding(Level.WARN, "memory", f"{_size(available)} available; Spark and the edge want {_size(needed)}", remedy)
    return Finding(Level.OK, "memory", f"{_size(available)} available")


def _memory_bytes() -> int | None:
    """What may still be taken: of the machine, or of our control group where that is less."""
    try:
        found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return None
    available = int(found[1]) << 10 if found else None
    with suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        left = limit - int(Path("/sys/fs/cgroup/memory.current").read_text())
        return left if available is None else min(available, left)
    return available


def _open_files(connections: int) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + FILES_BESIDE:
        says = f"at most {hard:,} open files: fewer connections than maxConnections ({connections:,}) are taken"
        return Finding(
            Level.WARN,
            "limits",
            says,
            f"ulimit -Hn {connections + FILES_BESIDE}, or LimitNOFILE in its unit, or lower maxConnections",
        )
    return Finding(Level.OK, "limits", f"{'unlimited' if hard == resource.RLIM_INFINITY else f'{hard:,}'} open files")


def _temporary() -> Finding:
    place = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"escrow doctor")
            file.flush()
    except OSError as error:
        return Finding(Level.FAIL, "temporary", f"{place}: {error.strerror}", "make room there, or set TMPDIR to another directory")
    free = _free_bytes(Path(place))
    if free < 64 << 20:
        return Finding(
            Level.WARN, "temporary", f"{place}: {_size(free)} free", "make room there, or set TMPDIR to another directory"
        )
    return Finding(Level.OK, "temporary", f"{place}: {_size(free)} free")


# --- what the settings name ---------------------------------------------------------------------------------------------------
def installation(settings: Settings) -> Iterator[Finding]:
    """Everything that the settings name."""
    running = supervised(settings)
    yield from _data_directory(settings)
    yield from _store(settings)
    yield from _keys(settings)
    yield from _tokens(settings)
    yield from _tls(settings)
    yield from _clock(settings)
    yield from _ports(settings, running)
    yield from _kafka(settings)
    yield from _service(running)


def supervised(settings: Settings) -> dict[str, Any] | None:
    """What supervisor.json says of an Escrow that runs on this data directory; None where none does."""
    try:
        found = json.loads((settings.data_dir / STATE_FILE).read_text())
        os.kill(int(found["supervisor"]), 0)
    except PermissionError:  # it runs, as somebody else
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def _data_directory(settings: Settings) -> Iterator[Finding]:
    place = settings.data_dir
    there = place
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        flush_ms = _flush_ms(there)
    except OSError as error:
        yield Finding(
            Level.FAIL, "data directory", f"{there}: {error.strerror}", f"make it and give it to this user: chown {_user()} {place}"
        )
        return
    note = "" if there == place else f" (will be made in {there})"
    yield Finding(Level.OK, "data directory", f"{place}: writable{note}")
    yield _file_system(place, there)
    yield _space(settings, there)
    if flush_ms > FLUSH_SLOW_MS:
        says = f"{flush_ms:.1f} ms for a flush of 4 KiB (median of {FLUSHES}): every acknowledgement waits for one"
        yield Finding(
            Level.WARN,
            "flush",
            says,
            "use a local SSD, or a controller with a protected cache; look for other writers (iostat -x 1)",
        )
    else:
        yield Finding(Level.OK, "flush", f"{flush_ms:.2f} ms for 4 KiB (median of {FLUSHES})")


def _flush_ms(directory: Path) -> float:
    """The median time of a write with fdatasync, in a file that is removed again."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(FLUSHES):
            begun_s = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), 0)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun_s) * 1000)
    return statistics.median(took)


def _file_system(place: Path, there: Path) -> Finding:
    kind, options = mount_of(there)
    if kind in _VOLATILE:
        return Finding(Level.WARN, "file system", f"{kind}: the data is gone after a reboot", "put dataDir on a disk")
    if kind.startswith(_REMOTE):
        return Finding(
            Level.WARN,
            "file system",
            f"{kind}: flushes and locks over a network may not hold what they promise",
            "use a local disk",
        )
    if kind == "overlay":
        return Finding(
            Level.WARN, "file system", "overlay: the data is gone with this container", "mount a volume and put dataDir on it"
        )
    if "noexec" in options:
        says = f"{place} is mounted noexec: Java cannot load its native libraries from there"
        return Finding(Level.WARN, "file system", says, "mount it without noexec, or put dataDir elsewhere")
    return Finding(Level.OK, "file system", kind or "unknown")


def mount_of(path: Path) -> tuple[str, str]:
    """(kind, options) of the file system that a path lies on; empty where that cannot be told."""
    best, found = -1, ("", "")
    with suppress(OSError):
        real = str(path.resolve())
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            words, _, behind = line.partition(" - ")
            point = words.split()[4].replace("\\040", " ")
            if (real == point or real.startswith(point.rstrip("/") + "/")) and len(point) >= best:
                best, found = len(point), (behind.split()[0], words.split()[5])
    return found


def _space(settings: Settings, there: Path) -> Finding:
    """Files are made full-size: the next one of each kind must fit."""
    free = _free_bytes(there)
    needed = settings.commit_log_segment_bytes + settings.state_table_file_bytes + settings.redo_log_file_bytes + SPACE_BESIDE_BYTES
    says = f"{_size(free)} free; the next files may take {_size(needed)}"
    if free < needed:
        return Finding(Level.FAIL, "disk space", says, "make room, or lower commitLogSegmentSize before the store is made")
    level = Level.WARN if free < 3 * needed else Level.OK
    return Finding(level, "disk space", says, "make room before it runs out: a full disk refuses halves")


def _store(settings: Settings) -> Iterator[Finding]:
    if importlib.util.find_spec("numpy") is None or not settings.store_dir.exists():
        return
    from store.directory import Geometry, StoreDirectory
    from store.errors import GeometryMismatch, StoreError

    try:
        directory = StoreDirectory(settings.store_dir, Geometry(**settings.geometry_values()))
    except GeometryMismatch as error:
        yield Finding(Level.FAIL, "store", str(error), "set the sizes back to what the store was made with")
    except StoreError as error:
        yield Finding(Level.FAIL, "store", str(error), f"escrow store verify {settings.store_dir}")
    except OSError as error:
        yield Finding(
            Level.FAIL,
            "store",
            f"{error.filename}: {error.strerror}",
            f"give it to this user: chown -R {_user()} {settings.data_dir}",
        )
    else:
        yield Finding(Level.OK, "store", f"{settings.store_dir}: store {directory.store_id} (escrow store verify looks deeper)")


def _keys(settings: Settings) -> Iterator[Finding]:
    file = settings.keys_file
    if settings.id_keys:
        yield Finding(Level.OK, "id keys", "given by the setting idKeys")
    elif file.exists():
        yield _secret("id keys", file)
    elif (settings.store_dir / "format.json").exists():
        says = f"{file} is missing, and there is a store: no producer can end a transaction whose id the old key sealed"
        yield Finding(Level.FAIL, "id keys", says, "restore it from its backup before you start Escrow, which would make a new one")
    else:
        yield Finding(Level.OK, "id keys", f"{file} is made at the first start; back it up")


def _secret(what: str, file: Path) -> Finding:
    try:
        found = file.stat()
        file.read_bytes()
    except OSError as error:
        return Finding(Level.FAIL, what, f"{file}: {error.strerror}", f"give it to this user: chown {_user()} {file}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding(Level.WARN, what, f"{file} can be read by others", f"chmod 600 {file}")
    return Finding(Level.OK, what, str(file))


def _tokens(settings: Settings) -> Iterator[Finding]:
    file = settings.tokens_file
    beyond = settings.listen_address not in ("127.0.0.1", "::1", "localhost")
    if not file.exists():
        if beyond:
            says = f"listenAddress is {settings.listen_address}, and there are no tokens: the edge refuses to start"
            yield Finding(Level.FAIL, "tokens", says, "escrow token new NAME --operator, or listen on 127.0.0.1")
        else:
            yield Finding(Level.OK, "tokens", "none: everybody on this machine may do everything, nobody else anything")
        return
    yield _secret("tokens", file)
    if importlib.util.find_spec("msgspec") is None:
        return
    from ingest.auth import token_file
    from ingest.errors import EdgeError

    try:
        count = len(token_file.load(file))
    except EdgeError as error:
        yield Finding(Level.FAIL, "tokens", str(error), "mend the file, or make it anew with escrow token new")
    else:
        if not count:
            yield Finding(Level.WARN, "tokens", f"{file} holds none: nobody is let in", "escrow token new NAME --operator")
        if beyond and not settings.tls_cert_file:
            says = f"listenAddress is {settings.listen_address} without TLS: tokens can be read on the way"
            yield Finding(Level.WARN, "TLS", says, "set tlsCertFile and tlsKeyFile, or put a proxy in front")


def _tls(settings: Settings) -> Iterator[Finding]:
    if not settings.tls_cert_file:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        says = f"{settings.tls_cert_file} and {settings.tls_key_file}: {why}"
        yield Finding(Level.FAIL, "TLS", says, "certificate (with its chain) and key must be PEM, belong together, and be readable")
    else:
        yield Finding(Level.OK, "TLS", settings.tls_cert_file)
        yield _secret("TLS key", Path(settings.tls_key_file))


# --- clock --------------------------------------------------------------------------------------------------------------------
def _clock(settings: Settings) -> Iterator[Finding]:
    if (settings.data_dir / "clock.alert").exists():
        yield Finding(
            Level.FAIL,
            "clock",
            "there is a clock alert: nothing is discarded or deleted",
            "escrow clock shows it and what to do",
        )
    behind_s = _behind_last_batch_s(settings)
    if behind_s > settings.clock_drift_max_ms / 1000:
        says = f"the wall clock stands {behind_s:,.0f} s before the last settled batch"
        yield Finding(Level.FAIL, "clock", says, "set the clock right (timedatectl) before you start Escrow")
    synchronised, error_s = _kernel_clock()
    if synchronised is None:
        yield Finding(Level.OK, "clock", "this system does not tell whether it is synchronised")
    elif synchronised:
        yield Finding(Level.OK, "clock", f"synchronised, by at most {error_s * 1000:.0f} ms wrong")
    else:
        says = "the system says that nothing keeps it right: it may drift, and a jump stops discards"
        yield Finding(Level.WARN, "clock", says, "install chrony or systemd-timesyncd; in a container this is the host's matter")


def _behind_last_batch_s(settings: Settings) -> float:
    page = settings.store_dir / "job.published"
    if importlib.util.find_spec("numpy") is None or not page.exists():
        return 0.0
    from store.errors import StoreError
    from store.io.pages import JOB_MAGIC, JobSlot, PublishedPage

    try:
        return PublishedPage(page, JOB_MAGIC)[JobSlot.NOW_MS] / 1000 - time.time()
    except (StoreError, OSError):
        return 0.0


_STA_UNSYNC: Final = 0x0040


class _Timex(ctypes.Structure):
    """The begin of Linux' struct timex, and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_byte * 256),
    )  # fmt: skip


def _kernel_clock() -> tuple[bool | None, float]:
    """(whether the kernel calls its clock synchronised, by how many seconds it may be wrong); (None, 0) where unknown."""
    try:
        timex = _Timex()  # modes 0: only asks
        state = ctypes.CDLL(None).adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None, 0.0
    return (None, 0.0) if state < 0 else (not timex.status & _STA_UNSYNC, timex.maxerror / 1_000_000)


# --- ports --------------------------------------------------------------------------------------------------------------------
def _ports(settings: Settings, running: dict[str, Any] | None) -> Iterator[Finding]:
    wanted = [("listenPort", settings.listen_address, settings.listen_port)]
    if settings.metrics_enabled:
        wanted.append(("jobMetricsPort", settings.metrics_address, settings.job_metrics_port))
    if settings.spark_ui_port:
        wanted.append(("sparkUiPort", "127.0.0.1", settings.spark_ui_port))
    own = {int(part.get("pid") or 0) for part in (running or {}).values() if isinstance(part, dict)} - {0}
    for key, address, port in wanted:
        yield _port(key, address, port, own)


def _port(key: str, address: str, port: int, own: set[int]) -> Finding:
    if not port:
        return Finding(Level.OK, "port", f"{key} is 0: a free one is taken")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
    except OSError as error:
        who = listener_of(port)
        if who is not None and who[0] in own:
            return Finding(Level.OK, "port", f"{key} {port}: Escrow itself (process {who[0]})")
        taken = f"taken by process {who[0]} ({who[1]})" if who else (error.strerror or str(error)).lower()
        remedy = (
            f"stop it, or choose another: --set {key}=PORT" if port >= 1024 else f"ports below 1024 need rights; --set {key}=PORT"
        )
        return Finding(Level.FAIL, "port", f"{key} {address}:{port}: {taken}", remedy)
    return Finding(Level.OK, "port", f"{key} {port}: free")


def listener_of(port: int) -> tuple[int, str] | None:
    """(process, its command) that listens on a port; None where that cannot be told."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{words[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return int(process.name), command[:60]
    return None


# --- Kafka --------------------------------------------------------------------------------------------------------------------
def _kafka(settings: Settings) -> Iterator[Finding]:
    """Each broker that is named, in Kafka mode."""
    if getattr(settings, "mode", "embedded") != "kafka":
        return
    if importlib.util.find_spec("confluent_kafka") is None:
        yield Finding(Level.FAIL, "Kafka", "the package confluent-kafka is missing", "in a checkout: pip install ./sdk '.[kafka]'")
    servers = [name.strip() for name in str(getattr(settings, "kafka_bootstrap_servers", "")).split(",") if name.strip()]
    if not servers:
        yield Finding(Level.FAIL, "Kafka", "kafkaBootstrapServers is empty", "name brokers: host:9092,host:9092")
    found = [broker(server) for server in servers]
    good = sum(each.level is not Level.FAIL for each in found)
    for each in found:
        # One broker of several may be away: the others know the cluster.
        yield Finding(Level.WARN, each.what, each.says, each.remedy) if each.level is Level.FAIL and good else each


def broker(server: str) -> Finding:
    """Does somebody there speak Kafka? Asked with the smallest request that there is: which versions do you know?"""
    host, _, port = server.rpartition(":")
    remedy = "is it running, is the name right, does a firewall stand between?"
    if not host or not port.isdigit():
        return Finding(Level.FAIL, "Kafka", f"{server!r} is not like host:9092", "mend kafkaBootstrapServers")
    body = b"\x00\x12\x00\x00" + b"ESCR" + b"\x00\x06" + b"escrow"  # ApiVersions, version 0, our mark, our name
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as connection:
            connection.sendall(len(body).to_bytes(4, "big") + body)
            answer = connection.recv(8)
    except OSError as error:
        return Finding(Level.FAIL, "Kafka", f"{server}: {error.strerror or error}", remedy)
    if answer[4:8] != b"ESCR":
        says = f"{server}: something listens, but does not answer Kafka's question in clear"
        return Finding(Level.WARN, "Kafka", says, "if it wants TLS or SASL, set them for Kafka; otherwise this is no broker")
    return Finding(Level.OK, "Kafka", f"{server}: answers")


# --- the service --------------------------------------------------------------------------------------------------------------
def _service(running: dict[str, Any] | None) -> Iterator[Finding]:
    if running is None:
        yield Finding(Level.OK, "service", "does not run on this data directory: start it with escrow run")
        return
    url = (running.get("edge") or {}).get("url", "")
    yield Finding(Level.OK, "service", f"runs (supervisor {running['supervisor']}){f', edge on {url}' if url else ''}")
    for name, part in running.items():
        if isinstance(part, dict) and part.get("starts", 0) > 1:
            yield Finding(Level.WARN, name, f"was started {part['starts']} times: it died in between", f"look into logs/{name}.log")
    if url.startswith("http://"):
        yield _readiness(url)


def _readiness(url: str) -> Finding:
    try:
        with Api(url, timeout_s=ANSWER_S, retry_for_s=0.0) as api:
            job = api.ready()["job"]
    except EscrowError as error:
        return Finding(Level.FAIL, "service", f"{url}: {error}", "look into logs/edge.log")
    if job["state"] == "no_room":
        return Finding(
            Level.FAIL, "job", "waits for room on the disk: nothing is settled meanwhile", "make room: it goes on by itself"
        )
    if job["state"] != "running":
        return Finding(
            Level.WARN,
            "job",
            f"is {job['state']}: nothing is settled meanwhile",
            "it needs half a minute to start; then logs/job.log tells",
        )
    return Finding(Level.OK, "job", f"runs; {job['halves_behind']:,} halves and {job['ops_behind']:,} ops behind")


# --- shared -------------------------------------------------------------------------------------------------------------------
def _free_bytes(path: Path) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
