"""Removing the edge's files: whole files before the low-water marks that the job publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from store.edge.files import EdgeFiles, EdgeState
from store.io.pages import JOB_MAGIC, JOB_PUBLISHED, EdgeSlot, JobSlot, PublishedPage


def retain(files: EdgeFiles, state: EdgeState, lock: threading.Lock, checkpoint: Callable[[], int]) -> dict[str, int]:
    """Delete the files that the job does not need any more. Returns how many were deleted, by directory.

    `lock` is the append lock. `checkpoint` writes a checkpoint and returns its log_end."""
    path = files.directory.root / JOB_PUBLISHED
    if not path.exists():
        return {}
    job = PublishedPage(path, JOB_MAGIC)
    # Read the cursor before the marks, which the job writes before it: then no mark is older than the cursor.
    marks_op_cursor = job[JobSlot.MARKS_OP_CURSOR]
    log_low, half_low, op_low = (job[slot] for slot in (JobSlot.LOG_LOW_WATER, JobSlot.HALF_LOW_WATER, JobSlot.OP_LOW_WATER))
    with lock:
        half_low = min(half_low, _pinned(files, state, marks_op_cursor)[0])
        # From here on no op about an earlier half is accepted, so that the job may remove its row.
        state.half_begin = max(state.half_begin, half_low)
        low = min(log_low, files.log.end)
        state.log_begin = max(files.log.file.begin, low - low % files.log.segment_bytes)
    # The checkpoint records what is gone, and recovery reads nothing before it again.
    checkpointed = checkpoint()
    with lock:
        # Only now: what was resumed during the checkpoint must keep its place in the log.
        log_low = min(log_low, _pinned(files, state, marks_op_cursor)[1])
        removed = {
            "commitlog": files.log.file.remove_before(min(log_low, checkpointed)),
            "half": files.half_queue.remove_before(half_low),
            "op": files.op_queue.remove_before(op_low),
            "ends": files.ends_table.file.remove_before(half_low),
        }
        state.log_begin = files.log.file.begin
        files.page[EdgeSlot.LOG_BEGIN], files.page[EdgeSlot.OP_BEGIN] = files.log.file.begin, files.op_queue.begin
        files.free_topic_numbers()
    return removed


def _pinned(files: EdgeFiles, state: EdgeState, marks_op_cursor: int) -> tuple[int, int]:
    """The first half, and its place in the log, that an op named since the job looked (a resume, and an end
    after it): it stays for one more cycle. Under the append lock."""
    op_queue, half_queue = files.op_queue, files.half_queue
    named = op_queue.read(max(marks_op_cursor, op_queue.begin), state.op_end)["tags_code"]
    half_offset = int(np.min(named[named >= 0], initial=state.half_end))
    there = half_queue.begin <= half_offset < state.half_end
    return half_offset, half_queue.entry(half_offset)[0] if there else files.log.end
