"""Shapes for probes and for the status page."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ingest.capabilities import JobState


class LiveOut(Struct):
    status: Literal["ok"]


class JobOut(Struct):
    """What the edge sees of the streaming job. `state`: absent (never started here), silent (no sign of life), no_room (it waits
    for room on the disk and goes on by itself), running."""

    state: Literal["absent", "silent", "no_room", "running"]
    halves_behind: int = 0
    ops_behind: int = 0


class ReadyOut(Struct):
    status: Literal["ok"]
    role: str
    job: JobOut


StatusOut = dict[str, Any]


def ready(role: str, job: JobState) -> ReadyOut:
    return ReadyOut("ok", role, JobOut(job.state, job.halves_behind, job.ops_behind))  # type: ignore[arg-type]
