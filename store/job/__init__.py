"""The job's side of the store: the only writer of redo log, state table and queues. From outside: `store`, `shard`, `batch`,
`undeliverable`; `checkpoint` for backups.
"""
