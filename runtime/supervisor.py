"""The supervisor behind `escrow run`: the edge, then the job, as one service.

    start    1 check what the machine lacks · 2 start the edge, wait until it accepts · 3 start the job, wait until
             it is warm · 4 ready
    exit     Kill what the part left behind and restart it after restartBackoff, which doubles with each quick exit
             up to restartBackoffMax. After restartDeathsMax quick exits in a row the service stops and says why.
             The same holds for the first start. A part that has no disk space is restarted or waited for without
             limit.
    stop     SIGTERM, SIGINT or SIGHUP: stop the job, which drains, then the edge; kill what is left at stopTimeout.
             A second one kills at once. SIGTERM and SIGHUP within REPEATED_S of the first are the same stop: make and
             shells pass on to a child what its whole process group got.

A part is a module that prints one JSON line {"ready": true, …} on stdout when it serves, or the reason on stderr
when it cannot. Exit code 2: a restart will not help, so the service stops at once. Exit code 75: no disk space.
{"waiting": true, "notice": why} on stdout: the part waits, and startTimeout does not count. A part's output goes to
a rotating log; the terminal shows only what an operator needs.

Nothing survives the supervisor: parts end with it (`runtime.child`), and the guard kills the processes that they
started (`runtime.orphan_reaper`). `supervisor.json` in the data directory tells other programs what runs where; it
is removed when the service stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runtime.java import java_problem
from runtime.part import EDGE, JOB, Part, PartLog, PartSpec, drain, told_by, why_ended
from runtime.processes import kill_session
from runtime.settings import Settings

OK, FAILED = 0, 2
USELESS_EXIT: Final = 2
NO_ROOM_EXIT: Final = 75
STATE_FILE: Final = "supervisor.json"
LOCK_FILE: Final = "supervisor.lock"
_LINE_MAX_BYTES: Final = 64 << 10
#: So long after the first signal, another SIGTERM or SIGHUP may be the same one, told twice.
REPEATED_S: Final = 3.0
#: The share of stopTimeout for the job, and the time kept for killing.
_JOB_SHARE: Final = 0.55
_KILL_RESERVE_S: Final = 1.0
#: How often a waiting part is looked at.
_LOOK_S: Final = 1.0


class GiveUp(Exception):
    """The service cannot go on; the text says why, in one line."""


class Supervisor:
    """Runs the parts until it is told to stop. `say` gets the lines for the operator."""

    def __init__(
        self,
        settings: Settings,
        specs: Sequence[PartSpec] = (EDGE, JOB),
        say: Callable[[str], None] = print,
        arguments: Sequence[str] = (),
    ) -> None:
        self.settings, self._say = settings, say
        self._arguments = [*settings.arguments(), *arguments]
        self.parts = [Part(spec, PartLog(settings, spec.name)) for spec in specs]
        self._stopping = asyncio.Event()
        self._stop_told_s: float | None = None
        self._killed = False
        self._guard: asyncio.subprocess.Process | None = None
        self._started_s = time.monotonic()

    # --- the whole -----------------------------------------------------------------------------------------------------------
    async def run(self) -> int:
        """Runs until a signal, or until it gives up; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        settings = self.settings
        self._say(f"starting; data in {settings.data_dir}, logs in {settings.log_dir}")
        try:
            await self._start_guard()
            code = await self._keep_all()
        finally:
            clean = await self._stop_all()
            await self._stop_guard()
            with contextlib.suppress(OSError):
                (settings.data_dir / STATE_FILE).unlink()
        self._say("stopped" if clean else "stopped; a process had to be killed, the next start recovers")
        return code

    def _signalled(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if self._stop_told_s is None:
            self._stop_told_s = now_s
            self._say("stopping")
            self._stopping.set()
        elif not self._killed and (number == signal.SIGINT or now_s > self._stop_told_s + REPEATED_S):
            self._killed = True
            self._say("killing what is left")
            for part in self.parts:
                if part.alive:
                    kill_session(part.pid)

    async def _keep_all(self) -> int:
        keepers = [
            asyncio.create_task(self._keep(part, before)) for part, before in zip(self.parts, [None, *self.parts], strict=False)
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait([*keepers, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                await task  # raises what ended it
            return OK
        except GiveUp as error:
            self._say(str(error))
            return FAILED
        finally:
            self._stopping.set()
            for task in (*keepers, stopping):
                task.cancel()
            await asyncio.gather(*keepers, stopping, return_exceptions=True)

    # --- one part ------------------------------------------------------------------------------------------------------------
    async def _keep(self, part: Part, before: Part | None) -> None:
        """Starts a part, waits for its exit, restarts it. GiveUp when a restart will not help."""
        while not self._stopping.is_set():
            if before is not None:
                await before.ready.wait()  # the edge recovers the log before the job may look at it
            ready_s = await self._live(part)
            if self._stopping.is_set():
                return
            reason = why_ended(part)
            code = part.process.returncode if part.process is not None else 0
            if code == USELESS_EXIT:
                raise GiveUp(f"the {part.spec.name} cannot start: {reason}")
            quick = ready_s < self.settings.restart_quick_ms / 1000
            part.deaths_without_room = part.deaths_without_room + 1 if quick and code == NO_ROOM_EXIT else 0
            if code != NO_ROOM_EXIT:
                part.quick_deaths = part.quick_deaths + 1 if quick else 0
            if part.quick_deaths >= self.settings.restart_deaths_max:
                times, log = part.quick_deaths, part.log.baseFilename
                happened = "died" if part.was_ready else "did not come up"
                raise GiveUp(f"the {part.spec.name} {happened} {times} times in a row, giving up: {reason}; see {log}")
            await self._back_off(part, reason)

    async def _back_off(self, part: Part, reason: str) -> None:
        settings = self.settings
        deaths = max(part.quick_deaths, part.deaths_without_room, 1)
        wait_ms = min(settings.restart_backoff_ms << min(deaths - 1, 32), settings.restart_backoff_max_ms)
        self._say(f"the {part.spec.name} died ({reason}); starting it again in {wait_ms / 1000:g} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)

    async def _live(self, part: Part) -> float:
        """Runs a part once; returns how many seconds it was ready."""
        process = await self._spawn(part)
        part.pumps = [asyncio.create_task(self._pump(part, name)) for name in ("stdout", "stderr")]
        exited = asyncio.create_task(process.wait())
        readied = asyncio.create_task(part.ready.wait())
        started_s = time.monotonic()
        try:
            timeout_s, done = self.settings.start_timeout_ms / 1000, set[Any]()
            while not done and (part.waiting or time.monotonic() < started_s + timeout_s):
                left_s = _LOOK_S if part.waiting else started_s + timeout_s - time.monotonic()
                done, _ = await asyncio.wait([exited, readied], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                started_s = time.monotonic() if part.waiting else started_s  # the whole time counts once there is space
            ready_at_s = time.monotonic()
            if part.ready.is_set():
                self._tell_part(part, ready_at_s - started_s)
            elif not exited.done():
                part.error = f"it was not ready after {self.settings.start_timeout_ms / 1000:g} s (startTimeout)"
                kill_session(process.pid)
            await exited
            return time.monotonic() - ready_at_s if part.ready.is_set() else 0.0
        finally:
            readied.cancel()
            if process.returncode is not None:
                await self._bury(part)
            else:  # the service stops: `_stop_all` ends the part, its output is still read
                exited.cancel()

    async def _spawn(self, part: Part) -> asyncio.subprocess.Process:
        part.ready.clear()
        part.told, part.error, part.waiting = {}, "", False
        arguments = list(self._arguments)
        for told, key in part.spec.ports:
            if part.told_before.get(told):
                arguments += ["--set", f"{key}={part.told_before[told]}"]
        part.starts += 1
        part.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runtime.child", str(os.getpid()), part.spec.module, *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            start_new_session=True, env={**os.environ, **self.settings.environment(), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._tell_guard(f"+{part.pid}")
        part.log.line("supervisor", f"started {part.spec.module} as process {part.pid}")
        self._write_state()
        return part.process

    async def _bury(self, part: Part) -> None:
        """After its exit: kills what it left behind, reads the rest of its output, tells the guard."""
        assert part.process is not None
        kill_session(part.pid)
        await drain(part)
        self._tell_guard(f"-{part.pid}")
        part.ready.clear()
        part.log.line("supervisor", f"process {part.pid} ended: {why_ended(part)}")
        self._write_state()

    async def _pump(self, part: Part, name: str) -> None:
        """Copies a part's output to its log, line by line; an endless line is cut."""
        stream = getattr(part.process, name)
        left = b""
        while chunk := await stream.read(_LINE_MAX_BYTES):
            *lines, left = (left + chunk).split(b"\n")
            if len(left) > _LINE_MAX_BYTES:
                lines, left = [*lines, left], b""
            for line in lines:
                self._heard(part, name, line.decode(errors="replace").rstrip("\r"))
        if left:
            self._heard(part, name, left.decode(errors="replace"))

    def _heard(self, part: Part, stream: str, text: str) -> None:
        part.log.line(stream, text)
        if stream == "stderr":
            if text.strip() and not text[0].isspace() and not (part.error.startswith("escrow") and not text.startswith("escrow")):
                part.error = text.strip()
            return
        told = told_by(text)
        if told.get("notice"):
            self._say(f"{part.spec.name}: {told['notice']}")
        part.waiting = bool(told.get("waiting", part.waiting))
        if told.get("ready"):
            part.told = part.told_before = told
            part.was_ready = True
            part.ready.set()

    def _tell_part(self, part: Part, took_s: float) -> None:
        settings, where = self.settings, ""
        if "url" in part.told:
            shown = [("console at /", settings.console_enabled), ("metrics at /metrics", settings.metrics_enabled)]
            pages = ", ".join(page for page, is_on in shown if is_on)
            where += f" on {part.told['url']}" + (f" ({pages})" if pages else "")
        for told, how in (("grpc_port", ""), ("grpc_tls_port", " with TLS")):
            if told in part.told:
                where += f", RocketMQ clients on {settings.listen_address}:{part.told[told]}{how}"
        if part.told.get("metrics_port"):
            where += f", metrics on http://{settings.metrics_address}:{part.told['metrics_port']}/metrics"
        self._say(f"{part.spec.name} ready{where} ({took_s:.1f} s)")
        self._write_state()
        if all(each.ready.is_set() for each in self.parts):
            self._say(f"ready after {time.monotonic() - self._started_s:.1f} s; stop with Ctrl-C or SIGTERM")

    def _write_state(self) -> None:
        """Writes what runs where, for other programs. The file is replaced atomically."""
        state: dict[str, Any] = {"supervisor": os.getpid(), "ready": all(part.ready.is_set() for part in self.parts)}
        for part in self.parts:
            state[part.spec.name] = {
                **part.told,
                "pid": part.pid if part.alive else 0,
                "ready": part.ready.is_set(),
                "starts": part.starts,
            }
        path = self.settings.data_dir / STATE_FILE
        with contextlib.suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps(state) + "\n")
            path.with_suffix(".new").replace(path)

    # --- stopping --------------------------------------------------------------------------------------------------------------
    async def _stop_all(self) -> bool:
        """Stops the last part first; False if one had to be killed."""
        total_s = self.settings.stop_timeout_ms / 1000
        begun_s, clean = time.monotonic(), True
        for number, part in enumerate(reversed(self.parts)):
            last = number == len(self.parts) - 1
            until_s = begun_s + (total_s - _KILL_RESERVE_S if last else total_s * _JOB_SHARE)
            if part.process is not None:
                clean &= await self._stop_part(part, max(until_s - time.monotonic(), 0.1))
            part.log.close()
        return clean and not self._killed

    async def _stop_part(self, part: Part, timeout_s: float) -> bool:
        assert part.process is not None
        clean = True
        if part.alive:
            with contextlib.suppress(ProcessLookupError):
                part.process.terminate()
            try:
                await asyncio.wait_for(part.process.wait(), timeout_s)
            except TimeoutError:
                clean = False
                self._say(f"the {part.spec.name} did not stop within {timeout_s:.1f} s: killing it")
        kill_session(part.pid)
        await part.process.wait()
        await drain(part)
        self._tell_guard(f"-{part.pid}")
        part.log.line("supervisor", f"process {part.pid} stopped with exit code {part.process.returncode}")
        return clean

    # --- the guard -------------------------------------------------------------------------------------------------------------
    async def _start_guard(self) -> None:
        self._guard = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "runtime.orphan_reaper",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def _tell_guard(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._guard.stdin.write(line.encode() + b"\n")

    async def _stop_guard(self) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
            try:
                await asyncio.wait_for(self._guard.wait(), 1.0)
            except TimeoutError:
                self._guard.kill()


def missing(environ: Mapping[str, str]) -> str:
    """What the job needs and this machine lacks, with the remedy; "" if nothing."""
    for module in ("numpy", "pyspark", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            return f"the Python package {module} is missing: in a checkout of Escrow, pip install ./sdk . (into {sys.prefix})"
    return java_problem(environ)


def run(settings: Settings, specs: Sequence[PartSpec] = (EDGE, JOB), say: Callable[[str], None] = print) -> int:
    """Runs the service; returns the exit code."""
    if any(spec.module == JOB.module for spec in specs):
        problem = missing(os.environ)
        if problem:
            say(problem)
            return FAILED
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"{settings.data_dir}: {error.strerror}: choose another dataDir, or give this user access to it")
        return FAILED

    async def supervise() -> int:
        return await Supervisor(settings, specs, say).run()

    with _only_one(settings.data_dir) as holder:
        if holder:
            say(
                f"{settings.data_dir}: process {holder} runs Escrow with this data directory; stop it first, or use another dataDir"
            )
            return FAILED
        return asyncio.run(supervise())


@contextlib.contextmanager
def _only_one(data_dir: Path) -> Iterator[str]:
    """Holds the data directory's lock; yields "", or the id of the process that has it."""
    with open(data_dir / LOCK_FILE, "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            yield lock.read().strip() or "unknown"
            return
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield ""
