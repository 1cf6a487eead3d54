"""Processes under measurement: their CPU, memory and written bytes as the kernel counts them; and programs that take commands."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SCAN_BYTES = 1 << 20


def tree(*roots: int) -> list[int]:
    """These processes and all that descend from them, as far as they live."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = path.read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(words[1]), []).append(int(path.parent.name))
    found, ahead = [], list(roots)
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += children.get(pid, [])
    return found


def cpu_s(pids: Iterable[int]) -> dict[int, float]:
    """Of each one that lives."""
    found: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            found[pid] = (int(words[11]) + int(words[12])) / TICKS_PER_S
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """`anonymous`: heaps and stacks, what processes share of them counted once. `private`: pages that one process alone maps, also
    of files: those are the page cache's, and the kernel may take them back."""

    anonymous_mib: float
    private_mib: float


def memory(pids: Iterable[int]) -> Memory:
    anonymous = private = 0
    for pid in pids:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, kib = line.split()[:2]
                anonymous += int(kib) if name == "Pss_Anon:" else 0
                private += int(kib) if name.startswith("Private_") else 0
    return Memory(anonymous / 1024, private / 1024)


def written_bytes(pids: Iterable[int]) -> int:
    """What these processes made dirty, in whole pages: a page that is flushed and written again counts again."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return total


def extent_bytes(directory: Path, without: Sequence[str] = ()) -> int:
    """Bytes in all files up to the last one of each that is not zero: files are made in full size and filled from the front."""
    total = 0
    for path in directory.rglob("*"):
        if path.is_file() and not any(part in without for part in path.relative_to(directory).parts):
            with suppress(FileNotFoundError):
                total += _extent(path)
    return total


def _extent(path: Path) -> int:
    with open(path, "rb") as file:
        end = _last_data(file.fileno(), os.fstat(file.fileno()).st_size)
        while end > 0:
            start = max(0, end - SCAN_BYTES)
            file.seek(start)
            used = len(file.read(end - start).rstrip(b"\0"))
            if used:
                return start + used
            end = start
    return 0


def _last_data(fd: int, size: int) -> int:
    """Where the last hole begins: what is behind was never written."""
    at = end = 0
    while at < size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:  # only a hole is left
            break
        at = end = os.lseek(fd, data, os.SEEK_HOLE)
    return end


class Talker:
    """A client program: a line with a command to it, a line of JSON back."""

    def __init__(self, command: Sequence[str], said: Path, env: Mapping[str, str] | None = None) -> None:
        self._errors = said
        with open(said, "a") as errors:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
            )
        #: What it told when it was ready.
        try:
            self.said = self.answer()
        except BaseException:  # nobody else knows of it yet
            self.process.kill()
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, command: str, **values: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join([command, *(f"{name}={value}" for name, value in values.items())]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError(f"the client program ended: {self._errors.read_text()[-2000:]}")

    def ask(self, command: str, **values: object) -> dict[str, Any]:
        self.tell(command, **values)
        return self.answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class Meter:
    """CPU and written bytes between two looks. A process that ended in between takes what it used with it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)
        self._begun_s, self._cpu_s, self._written = time.monotonic(), cpu_s(self._pids), written_bytes(self._pids)

    @property
    def cpu_s(self) -> float:
        return sum(now_s - self._cpu_s[pid] for pid, now_s in cpu_s(self._pids).items())

    @property
    def cores(self) -> float:
        return self.cpu_s / (time.monotonic() - self._begun_s)

    @property
    def written(self) -> int:
        return written_bytes(self._pids) - self._written
