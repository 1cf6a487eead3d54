"""Verify, the job's side: everything that is derived against the redo log.

Batches that were not yet published when the page was read may or may not be applied: what they touch is not compared.
"""

from __future__ import annotations

from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.job.directories import check_directories
from store.inspect.verify.job.numbered_queues import compare_numbered
from store.inspect.verify.job.state_table import StateRows
from store.inspect.verify.job.topic_queues import TopicQueues
from store.inspect.verify.job_files import JobFiles
from store.tables.queue_files import NUMBERED_QUEUES


def check_derived(job: JobFiles, edge: EdgeFiles) -> dict[str, object]:
    """State table, queues and catalogue against the replay. Returns figures for the summary."""
    if job.replay is None or not job.comparable:
        return {}
    rows = StateRows(job, job.replay, edge)
    pending = rows.check_pending()
    rows.compare()
    for name in NUMBERED_QUEUES:
        compare_numbered(name, job, job.replay, edge)
    entries = TopicQueues(job, job.replay, edge).compare()
    check_directories(job)
    return {"pending": pending, "topic_queues": len(job.extents), "topic_entries": entries}
