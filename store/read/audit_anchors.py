"""Anchors of the audit, read from the commit log: messages of topic ANCHOR_TOPIC (`audit.py`)."""

from __future__ import annotations

from pathlib import Path

from store.errors import Corrupt, SegmentGone
from store.read.readers import LogReader, TopicReader, open_readers
from store.records import queue_key
from store.tables.journals.audit import ANCHOR_TOPIC, Head


def anchors_of(root: Path) -> list[Head]:
    """Those that the job has released and retention has left, in the order of their queues."""
    _, log, topics, dictionary = open_readers(root)
    try:
        topic_no = dictionary.topic_no(ANCHOR_TOPIC)
        if topics is None or topic_no is None:
            return []
        topics.follow()
        return [anchor for queue_id in range(dictionary.queues[topic_no]) for anchor in _of_queue(log, topics, topic_no, queue_id)]
    finally:
        log.close()
        if topics is not None:
            topics.close()
        dictionary.close()


def _of_queue(log: LogReader, topics: TopicReader, topic_no: int, queue_id: int) -> list[Head]:
    begin, end = topics.catalogue.extent(queue_key(topic_no, queue_id))
    _, entries = topics.topic_entries(topic_no, queue_id, begin, end - begin)
    found = []
    for offset, size, _ in entries.tolist():
        if size:
            try:
                found.append(Head.decode(log.log.read(offset, size).body))
            except (Corrupt, SegmentGone, ValueError):
                continue  # `escrow store verify` is about damage of the log
    return found
