"""Kafka mode, as docs/kafka.md has it.

contract.py   names of topics and headers; what an op and a place look like. No Kafka client needed
clients.py    options of Kafka clients, and the topics that must be there
groups.py     which consumer groups have a member
redo.py       records of the redo topic: encode, decode, follow

A batch is released by a task on an executor:
task.py         the task, its result, how it can fail
release.py      runs a task: one batch of one shard in one Kafka transaction
ownership.py    transactional ids: fencing, claims, the producer of a shard
transaction.py  one attempt: what each redo entry becomes
bodies.py       reads the halves that the entries are about
sender.py       sends, and finds out which messages Kafka refuses
refusals.py     refused messages: why, what waits behind them
reach.py        whether a real topic can take messages
stuck.py        transactional ids that Kafka cannot give to any producer
gc_pause.py     Python's cycle collector, off where tasks run
topic_settings.py  settings of Escrow's own topics
"""
