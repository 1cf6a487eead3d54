"""The store: bytes and truth. Segments, commit log, queues, state table, redo log, ends, recovery, verify and dump.

One directory of data, one writer for each file, readers in other processes at the same time. Two sides write:
the edge (`store.edge.store.EdgeStore`) and the settling job (`store.job.store.JobStore`). `FORMAT.md` describes every file.
"""
