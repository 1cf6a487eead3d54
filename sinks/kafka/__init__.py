"""Kafka mode, as docs/kafka.md has it.

contract.py   names of topics and headers; what an op and a place look like. No Kafka client needed
clients.py    options of Kafka clients, and the topics that must be there
groups.py     which consumer groups have a member
redo.py       records of the redo topic: encode, decode, follow
gc_pause.py  Python's cycle collector, off where tasks run
release.py    one batch of one shard in one Kafka transaction: what a task on an executor does
"""
