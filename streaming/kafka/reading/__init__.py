"""What the driver reads: Kafka's records as columns, the ranges of a batch, and what of it a shard settles now."""
