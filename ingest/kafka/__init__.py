"""The edge in Kafka mode, as docs/kafka.md has it: the same requests and answers, over topics instead of the store.

edge.py      KafkaEdge: what the endpoint calls
sealing.py   transaction ids
messages.py  a message as a Kafka record, and back; what Kafka would refuse is refused at the door
writer.py    a producer and its reports; what happens while Kafka is out of reach
ops.py       one op record, read
follower.py      how each half has ended: follows the op topic
halves.py    halves read by partition and offset
checks.py    check requests: from the check topic to members that poll
history.py   what is known of one transaction
dedup.py     dedup keys, by endpoint
quotas.py    rates
job.py       whether there is a job
places.py    a half's place, and the same as one number
"""
