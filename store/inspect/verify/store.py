"""Verify: every file of a store against every other. Reads only, takes no lock, may run beside the writers.

    from store.inspect.verify.store import verify
    report = verify(Path("data"))
    for problem in report.problems: print(problem.file, problem.offset, problem.reason)

What is held against what:

    commit log         every frame against its CRC, its batch, its number; the bytes behind the end
    half and op queue  every entry against its frame, every frame against its entry
    ends               every mark against a replay of the op log
    dictionary         whole; the numbers and names in every frame against it
    redo log           every batch against its CRC and the batch before; every release against the op that asks for it
    state table        every row against a replay of the redo log, against its half's frame and against the ops up to the cursor
    topic queues       every entry against the redo log and the frame; no half twice, none that was rolled back
    check, proposal, discard, quarantine   every entry against the redo log
    catalogue, pages, checkpoints, cursors, dedup, presence, consumers, audit   against all of these
    everything else in the directory is a foreign file

A side that was not closed in order runs, or was killed. What lies behind its published ends is not judged, and a problem before
them is reported only if a second look finds it, too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from store.directory import EDGE_CHECKPOINT, FORMAT_FILE, JOB_CHECKPOINT, StoreDirectory, format_of
from store.errors import Corrupt
from store.incarnations import INCARNATIONS
from store.inspect.verify.edge.side import EdgeSide
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.files import Findings, Problem, Report, check_names
from store.inspect.verify.job.side import check_derived
from store.inspect.verify.job_files import JobFiles
from store.inspect.verify.log_walk import LogWalk
from store.inspect.verify.small import check_small_files
from store.io.pages import EDGE_PUBLISHED, JOB_PUBLISHED
from store.io.wakeup import EDGE_WAKE, JOB_WAKE
from store.tables.delivery_cursors import CURSORS

__all__ = ["Problem", "Report", "verify"]

ROOT_NAMES: Final = (
    FORMAT_FILE,
    *("make.lock", "edge.lock", "job.lock"),
    *(EDGE_PUBLISHED, JOB_PUBLISHED, EDGE_CHECKPOINT, JOB_CHECKPOINT, CURSORS, "job.round"),
    *("dictionary", "consumers", "audit", "presence", "dedup", "names", INCARNATIONS),
    *(JOB_WAKE, EDGE_WAKE),
    *("commitlog", "half", "op", "ends", "transaction", "lost+found"),
)


def verify(path: Path, quick: bool = False) -> Report:
    """Hold every file of the store in `path` against every other. `quick`: no frame's CRC, and nothing behind the ends.

    Raises StoreError where `path` cannot be read as a store at all.
    """
    try:
        directory = StoreDirectory(path)
    except Corrupt as error:
        return Report([Problem(Path(error.file), error.offset, error.reason)])
    report, quiet = _look(directory, quick)
    if report.problems and not quiet:
        # A writer may have been in the middle of something: what is really wrong is still wrong the second time.
        again, _ = _look(directory, quick)
        kept = {(problem.file, problem.offset) for problem in report.problems}
        again.problems = [problem for problem in again.problems if (problem.file, problem.offset) in kept]
        return again
    return report


def _look(directory: StoreDirectory, quick: bool) -> tuple[Report, bool]:
    """One look at everything; and whether both sides were closed in order before."""
    findings = Findings()
    _check_format(directory, findings)
    job = JobFiles(directory, findings)
    edge = EdgeFiles(directory, findings, quick)
    side = EdgeSide(edge, job)
    side.check()
    figures = check_derived(job, edge)
    check_small_files(directory, edge, side.walk, job, findings)
    _check_directories(directory, findings)
    report = Report(findings.problems(), _summary(edge, side.walk, job, figures, findings))
    return report, edge.clean and (job.clean or not job.present)


def _check_format(directory: StoreDirectory, findings: Findings) -> None:
    """`format.json` byte for byte as it is written."""
    path = directory.root / FORMAT_FILE
    content = path.read_bytes()
    try:
        made = format_of(directory.store_id, directory.geometry, directory.needs)
        good = content == json.dumps(made, indent=2).encode() + b"\n"
        good = good and len(directory.store_id) == 16 and int(directory.store_id, 16) >= 0
    except (ValueError, TypeError) as error:
        findings.add(path, 0, f"not what a store has there: {error}")
        return
    if not good:
        findings.add(path, 0, "not what a store has there")


def _check_directories(directory: StoreDirectory, findings: Findings) -> None:
    check_names(directory.root, ROOT_NAMES, findings)
    for shards in ("half", "op", "ends"):
        check_names(directory.root / shards, ["0"], findings)


def _summary(edge: EdgeFiles, walk: LogWalk, job: JobFiles, figures: dict[str, object], findings: Findings) -> dict[str, object]:
    summary: dict[str, object] = {
        "frames": walk.frames,
        "halves": edge.half_end - edge.half_begin,
        "ops": edge.op_end - edge.op_begin,
        "log_bytes": edge.log_end - edge.log.begin,
        "edge_closed_in_order": edge.clean,
    }
    if job.present:
        summary |= {
            "redo_batches": len(job.scan.starts),
            "redo_entries": int(job.scan.counts.sum()),
            "generation": job.generation,
            "job_closed_in_order": job.clean,
            "derived_files_compared": job.comparable,
            "states": job.states(),
            **figures,
        }
    if findings.notes:
        summary["notes"] = findings.notes
    return summary
