"""Kafka's records as the edge reads and writes them: messages, halves, ops, and the ids made of their places."""
