"""A transactional id that Kafka cannot give to anybody: the end of its last transaction has to be written to a partition that takes
nothing, for as long as that partition is away.

The shard goes on under the next id then (`Target.generation`). That is safe when nobody can write under the old one any more:
    - its transaction is being aborted: whoever wrote it was fenced by that, or has aborted it itself, and a task never writes with
      a producer again that has aborted;
    - that was still so after the claim under the next id was in the redo partition: whoever takes the old id later reads the claim.
An id whose transaction is being committed is waited for: its writer may go on with it.
"""

from __future__ import annotations

import logging
from typing import Final

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from sinks.kafka.clients import Connection

LOG: Final = logging.getLogger("escrow.kafka")
BEING_ABORTED: Final = frozenset({"PrepareAbort", "PrepareEpochFence"})


def is_stuck(connection: Connection, transactional_id: str) -> bool:
    """Whether its transaction is being aborted, and Kafka cannot end that. False where Kafka does not tell."""
    admin = None
    try:
        admin = KafkaAdminClient(**connection.kafka_python())
        found = admin.describe_transactions([transactional_id])[transactional_id]
    except KafkaError as error:
        LOG.warning("transactional id %s: its state is not known: %r", transactional_id, error)
        return False
    finally:
        if admin is not None:
            admin.close()
    stuck = str(found.state.value) in BEING_ABORTED
    if stuck:
        waits = ", ".join(sorted(f"{topic}/{partition}" for topic, partition in found.topic_partitions))
        LOG.warning("transactional id %s is held by an aborted transaction that Kafka cannot end: %s", transactional_id, waits)
    return stuck
