"""How far consumer groups are behind: extents of queues, places and lag by topic and group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingest.consuming.group_queue import GroupQueue
from ingest.consuming.reading.tail import Tail
from store.records import QUEUE_ID_BITS, topic_of_key
from store.tables.journals.names import Dictionary

#: (begin, end) by queue key.
Extents = dict[int, tuple[int, int]]
#: By group number and queue key.
Queues = Mapping[tuple[int, int], GroupQueue]


def queue_keys(names: Dictionary, topic_no: int) -> list[int]:
    return [topic_no << QUEUE_ID_BITS | queue_id for queue_id in range(names.queues[topic_no])]


def extents(tail: Tail, next_offset: dict[int, int]) -> Extents:
    """Of every queue that has anything. Messages that are appended and not readable yet count."""
    found = tail.extents()
    for queue_key, end in next_offset.copy().items():  # appended to in another thread
        known = found.get(queue_key)
        if known is None:
            found[queue_key] = (0, end)
        elif known[1] < end:
            found[queue_key] = (known[0], end)
    return found


def by_topic(names: Dictionary, queues: Queues, found: Extents) -> list[dict[str, Any]]:
    """Each topic with its queues, and each group that reads it."""
    groups: dict[int, dict[int, list[GroupQueue]]] = {}
    for (group_no, queue_key), queue in sorted(queues.items()):
        groups.setdefault(topic_of_key(queue_key)[0], {}).setdefault(group_no, []).append(queue)
    return [
        {
            "topic": topic,
            "queues": [_queue_figures(queue_key, found) for queue_key in queue_keys(names, topic_no)],
            "groups": [_group_figures(names.groups[group_no], read, found) for group_no, read in groups.get(topic_no, {}).items()],
        }
        for topic_no, topic in names.living_topics()
    ]


def totals(names: Dictionary, queues: Queues, found: Extents) -> dict[tuple[str, str], tuple[int, int]]:
    """(lag, messages in hand) by (topic, group)."""
    counted: dict[tuple[str, str], tuple[int, int]] = {}
    for (group_no, queue_key), queue in queues.items():
        key = names.topics[topic_of_key(queue_key)[0]], names.groups[group_no]
        lag, in_hand = counted.get(key, (0, 0))
        counted[key] = lag + _lag(queue, found), in_hand + queue.in_hand
    return counted


def _queue_figures(queue_key: int, extents: Extents) -> dict[str, int]:
    begin, end = extents.get(queue_key, (0, 0))
    return {"queue_id": topic_of_key(queue_key)[1], "begin": begin, "end": end}


def _group_figures(group: str, queues: list[GroupQueue], extents: Extents) -> dict[str, Any]:
    places = [
        {
            "queue_id": topic_of_key(queue.queue_key)[1],
            "queue_offset": queue.offset,
            "lag": _lag(queue, extents),
            "in_hand": queue.in_hand,
            "deleted_unread": max(0, extents.get(queue.queue_key, (0, 0))[0] - queue.offset),
        }
        for queue in queues
    ]
    return {
        "group": group,
        "lag": sum(place["lag"] for place in places),
        "in_hand": sum(place["in_hand"] for place in places),
        "deleted_unread": sum(place["deleted_unread"] for place in places),
        "queues": places,
    }


def _lag(queue: GroupQueue, extents: Extents) -> int:
    """Messages of a queue that its group has not done."""
    begin, end = extents.get(queue.queue_key, (0, 0))
    return max(0, end - max(queue.offset, begin))
