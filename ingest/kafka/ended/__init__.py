"""How the halves of Kafka mode have ended: tables, checkpoints, and the follower of the op partitions."""
