"""Verify, frames of halves and ordinary messages: their numbers and properties against the dictionary."""

from __future__ import annotations

from typing import Final

import numpy as np

from store.arrays import Array, Ints
from store.inspect.verify.edge_files import EdgeFiles
from store.properties import PGROUP, REAL_TOPIC, TAGS, PropertyFinder, decode_properties, encode_properties, tags_code
from store.tables.frames import HALF_HEAD

_TAG: Final = PropertyFinder(TAGS)


class MessageFrames:
    """What a half and an ordinary message have in common."""

    def __init__(self, edge: EdgeFiles) -> None:
        self._edge = edge

    def check(self, offsets: Ints, heads: Array) -> None:
        self._check_heads(offsets, heads)
        if not self._edge.quick:
            self._check_tails(offsets, heads)

    def _check_heads(self, offsets: Ints, heads: Array) -> None:
        edge = self._edge
        size = HALF_HEAD.itemsize + heads["body_bytes"].astype(np.int64) + heads["properties_bytes"]
        edge.log.add_where(offsets, size != heads["size_bytes"], 104, "body and properties do not fill the frame")
        edge.log.add_where(
            offsets, (heads["group_no"] < 0) | (heads["group_no"] >= len(edge.groups)), 48, "a group that has no name"
        )
        known = (heads["topic_no"] >= 0) & (heads["topic_no"] < len(edge.topics))
        edge.log.add_where(offsets, ~known, 52, "a topic that has no name")
        queues = np.array([*edge.queues, 0])[np.where(known, heads["topic_no"], len(edge.queues))]
        edge.log.add_where(offsets, known & (heads["queue_id"] >= queues), 56, "a queue that the topic does not have")

    def _check_tails(self, offsets: Ints, heads: Array) -> None:
        """Names in the properties must be the dictionary's; the tags code that of the tags."""
        edge = self._edge
        prefixes: dict[tuple[int, int], bytes] = {}
        columns = (heads[name].tolist() for name in ("group_no", "topic_no", "body_bytes", "properties_bytes", "tags_code"))
        start = int(offsets[0]) - int(offsets[0]) % edge.log.segment_bytes
        segment = edge.log.segment(start)
        assert segment is not None, "a block of frames lies in one segment"
        raw = memoryview(segment.data)
        for offset, group_no, topic_no, body, size, code in zip(offsets.tolist(), *columns, strict=True):
            prefix = prefixes.get((group_no, topic_no))
            if prefix is None:
                if not (0 <= group_no < len(edge.groups) and 0 <= topic_no < len(edge.topics)):
                    continue
                own = {PGROUP: edge.groups[group_no], REAL_TOPIC: edge.topics[topic_no]}
                prefix = prefixes[group_no, topic_no] = encode_properties(own)
            at = offset - start + HALF_HEAD.itemsize + body
            content = bytes(raw[at : at + size])
            if not code and content.startswith(prefix) and _TAG.find(content) is None:
                continue
            self._check_properties(offset, offset + HALF_HEAD.itemsize + body, content, prefix, code)

    def _check_properties(self, offset: int, at: int, content: bytes, prefix: bytes, code: int) -> None:
        edge = self._edge
        try:
            properties = decode_properties(content)
        except ValueError:
            edge.log.add(at, "properties that cannot be read")
            return
        own = decode_properties(prefix)
        if any(properties.get(name) != value for name, value in own.items()):
            edge.log.add(at, f"{PGROUP} or {REAL_TOPIC} is not what the dictionary has for the frame's numbers")
        if tags_code(properties.get(TAGS, "")) != code:
            edge.log.add(offset + 40, "the tags code is not that of TAGS")
