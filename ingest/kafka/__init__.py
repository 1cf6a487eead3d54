"""The edge in Kafka mode, as docs/kafka.md has it: the same requests and answers, over topics instead of the store.

edge.py        KafkaEdge: what the endpoint calls
opening.py     what a start waits for
storing.py     halves and messages
ending.py      ends; acting.py: what operators do by ids
ended/         how each half has ended: follows the op topic, with checkpoints
checking/      check requests, to members that poll
records/       Kafka's records, read and written
writer.py      a producer and its reports
reach.py       whether Kafka can be reached
history.py     what is known of one transaction
keys/          dedup keys: the keys topic
quotas.py      rates
job.py         whether there is a job
"""
