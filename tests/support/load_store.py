"""Files of the load tests, and the halves that they hold."""

from __future__ import annotations

from store.read.readers import LogReader, open_readers

GEOMETRY = ("commitLogSegmentSize=64MiB", "logQueueEntriesPerFile=100000", "maxBodySize=256KiB")


def halves_in(store):
    """How many halves are in the log of a store, read from the disk."""
    _, log, topics, _ = open_readers(store)
    try:
        assert isinstance(log, LogReader)
        return log.ends()[0]
    finally:
        log.close()
        if topics is not None:
            topics.close()
