"""The lease: which of several drivers is the master. Kafka's own group membership decides.

All drivers are members of one consumer group on the lease topic, which has one partition: who is given it is the master. A driver
that dies is silent for kafkaLeaseTimeout, then Kafka gives the partition to another. Membership is kept by the client's own
thread; `_run` polls, because a driver whose Python hangs for POLL_MAX_S should lose the lease too.

The lease is for liveness. That an old master can write nothing is the work of claims and fencing (sinks/kafka/release.py).
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

LOG: Final = logging.getLogger("escrow.kafka")
POLL_S: Final = 0.5
POLL_MAX_S: Final = 60


class Lease:
    """`held` is set while this driver is the master. Once lost, it stays lost: `lost` is set, `why_lost` says why, and the process
    should end. `elsewhere`: Kafka has said that another has it."""

    def __init__(self, options: dict[str, Any], topic: str, group: str, timeout_ms: int) -> None:
        self.held, self.lost, self.elsewhere = threading.Event(), threading.Event(), threading.Event()
        self._stopping, self._timeout_ms = threading.Event(), timeout_ms
        self.why_lost = ""
        mine = {
            "group.id": group,
            "session.timeout.ms": timeout_ms,
            "heartbeat.interval.ms": max(500, timeout_ms // 5),
            "max.poll.interval.ms": max(POLL_MAX_S * 1000, timeout_ms),
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "partition.assignment.strategy": "cooperative-sticky",
        }
        self._consumer = Consumer({**options, **mine})
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._unheard)
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if partitions:
            self.held.set()
        elif not self.held.is_set():
            self.elsewhere.set()

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lose(consumer, partitions, "Kafka has given it to another driver, which is the master now")

    def _unheard(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Who is the master now, if anybody, is not known here."""
        away = f"for longer than kafkaLeaseTimeout ({self._timeout_ms / 1000:g} s) Kafka has not heard from this driver"
        self._lose(consumer, partitions, f"{away}, or did not answer it: brokers, network or this machine were away")

    def _lose(self, consumer: Consumer, partitions: list[TopicPartition], why: str) -> None:
        consumer.incremental_unassign(partitions)
        if partitions and self.held.is_set():
            self.held.clear()
            self.why_lost = why
            self.lost.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._consumer.poll(POLL_S)
            except KafkaException as error:  # brokers come and go; whether we are still a member is for Kafka to say
                LOG.warning("lease: %s", error.args[0].str())
            except BaseException:  # a defect: nobody polls any more, and Kafka will give the lease to another
                LOG.exception("lease")
                self.held.clear()
                self.lost.set()
                return

    def close(self) -> None:
        """Give it back: another may have it at once."""
        self._stopping.set()
        self._thread.join(10)
        self._consumer.close()
