"""Which consumer groups have a member: the lease's (is there a job?), those of producer groups (can somebody be asked?).

By the list of all groups, not by a description of some: librdkafka 2.16 ends the process when it loses the broker while it looks
for a group's coordinator on behalf of an admin request (an assertion in rdkafka_queue.h). It is one request a broker, too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

MARGIN_S: Final = 2.0
_NOBODY: Final = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})


class Members(NamedTuple):
    """What the brokers said."""

    live: dict[str, bool]  # by consumer group: whether it has a member; groups that nobody knows are left out
    whole: bool  # False: a broker did not answer, and the groups that it coordinates are left out too
    answered: bool = True  # False: no broker did, as far as one can tell


def members(admin: AdminClient, timeout_s: float) -> Members:
    """Asked of all brokers."""
    try:
        # The client's own timeout comes first: then it still tells what the other brokers said.
        listed = admin.list_consumer_groups(request_timeout=timeout_s).result(timeout_s + MARGIN_S)
    except (KafkaException, TimeoutError):
        return Members({}, whole=False, answered=False)
    live = {group.group_id: group.state not in _NOBODY for group in listed.valid}
    return Members(live, whole=not listed.errors, answered=bool(live) or not listed.errors)
