"""Verify, the job's directories: nothing foreign in them."""

from __future__ import annotations

from typing import Final

from store.inspect.verify.files import Findings, check_names, list_directory
from store.inspect.verify.job_files import JobFiles
from store.records import topic_of_key
from store.tables.queue_files import NUMBERED_QUEUES

GENERATION_NAMES: Final = ("statetable", "topics", *NUMBERED_QUEUES, "catalogue")


def check_directories(job: JobFiles) -> None:
    transaction = job.directory.transaction
    names = list_directory(transaction, Findings())
    check_names(transaction, ["CURRENT", "redolog", *(name for name in names if name.startswith("generation-"))], job.findings)
    check_names(transaction / "redolog", [job.directory.redo_log().parent.name], job.findings)
    check_names(job.directory.redo_log().parent, ["0"], job.findings)
    check_names(job.root, GENERATION_NAMES, job.findings)
    check_names(job.root / "statetable", ["0"], job.findings)
    if not job.clean:
        return
    topics: dict[str, list[str]] = {}
    for key in job.extents:
        topic_no, queue_id = topic_of_key(key)
        topics.setdefault(str(topic_no), []).append(str(queue_id))
    check_names(job.root / "topics", topics, job.findings)
    for topic, queues in topics.items():
        check_names(job.root / "topics" / topic, queues, job.findings)
