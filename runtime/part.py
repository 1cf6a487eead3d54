"""One part of the service, the edge or the job: what is run, its log, its life so far, and why it ended."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.handlers
import re
import signal
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part: its name, its module, and the ports that it reports when it is ready, with the setting of each.
    A restarted part gets the ports that it had."""

    name: str
    module: str
    ports: tuple[tuple[str, str], ...] = ()


EDGE: Final = PartSpec(
    "edge", "ingest.server", (("port", "listenPort"), ("grpc_port", "grpcPort"), ("grpc_tls_port", "grpcTlsPort"))
)
JOB: Final = PartSpec("job", "streaming.job", (("metrics_port", "jobMetricsPort"),))


class PartLog(logging.handlers.RotatingFileHandler):
    """A part's output, one record per line. On a full disk lines are dropped and counted; the service goes on."""

    def __init__(self, settings: Settings, name: str) -> None:
        settings.log_dir.mkdir(parents=True, exist_ok=True)
        path = settings.log_dir / f"{name}.log"
        super().__init__(path, maxBytes=settings.log_file_bytes, backupCount=settings.log_files, delay=True, errors="replace")
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self.lost = 0

    def line(self, stream: str, text: str) -> None:
        self.handle(logging.LogRecord("part", logging.INFO, "", 0, f"{stream} {text}", None, None))

    def handleError(self, record: logging.LogRecord) -> None:
        self.lost += 1


@dataclass(slots=True)
class Part:
    """A part and its state."""

    spec: PartSpec
    log: PartLog
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    told: dict[str, Any] = field(default_factory=dict)
    told_before: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    was_ready: bool = False
    waiting: bool = False
    starts: int = 0
    quick_deaths: int = 0
    #: Quick exits in a row for lack of disk space: they lengthen the pause and have no other effect.
    deaths_without_room: int = 0
    pumps: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None


async def drain(part: Part) -> None:
    """Reads the rest of an ended part's output."""
    if part.pumps:
        await asyncio.wait(part.pumps, timeout=1.0)
    for pump in part.pumps:
        pump.cancel()
    part.pumps = []


def told_by(text: str) -> dict[str, Any]:
    if not text.startswith("{"):
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def why_ended(part: Part) -> str:
    """Why a part ended: its last error line, or the signal that killed it."""
    code = part.process.returncode if part.process is not None else None
    if code is not None and code < 0 and not part.error.startswith("it was"):
        return f"killed by {signal.Signals(-code).name}"
    said = re.sub(r"^escrow[a-z ]*: ", "", part.error)
    return said or f"exit code {code}, no reason given"
