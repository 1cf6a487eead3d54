"""Dedup keys of Kafka mode: a half with a key that was used within dedupWindow is the same half, at every endpoint."""
