"""Verify, ops: their frames against the op queue, against the halves they speak of, and their details."""

from __future__ import annotations

import json
from typing import Any, Final

import numpy as np

from store.arrays import Array, Ints
from store.directory import TRANSACTIONS
from store.inspect.verify.edge.ends import EndsReplay
from store.inspect.verify.edge.halves import Halves
from store.inspect.verify.edge.items import Items
from store.inspect.verify.edge.log_order import NumberOrder, PlaceOrder
from store.inspect.verify.edge.log_queues import check_entries_left, compare_queue
from store.inspect.verify.edge.messages import MessageFrames
from store.inspect.verify.edge.releases import Releases
from store.inspect.verify.edge_files import EdgeFiles
from store.inspect.verify.log_walk import LogWalk
from store.records import NO_POSITION, OpKind, Via, queue_key, queue_key_of
from store.tables.frames import HALF_HEAD, ITEM, OP_HEAD, OP_ITEMS, OP_JOINT, FrameKind

_ASKED_TAG: Final = -2


class Ops:
    """Ops and ordinary messages, which share the op queue."""

    def __init__(
        self, edge: EdgeFiles, halves: Halves, ends: EndsReplay, releases: Releases, *, numbers: NumberOrder, places: PlaceOrder
    ) -> None:
        self._edge, self._halves, self._ends, self._releases = edge, halves, ends, releases
        self.numbers, self.places = numbers, places
        self._messages, self._items = MessageFrames(edge), Items(edge, halves)
        self.seen = np.zeros(max(0, edge.op_end - edge.op_begin), bool)

    def check(self, offsets: Ints, heads: Array) -> None:
        edge = self._edge
        of_message = heads["kind"] == FrameKind.MESSAGE
        ops = edge.gather(offsets, OP_HEAD)
        self._check_op_heads(offsets[~of_message], ops[~of_message])
        told = self._items.told(offsets, ops, of_message)
        self.numbers.check(offsets, heads["queue_offset"], told.counts)
        of_message, offsets, heads, ops = (np.repeat(column, told.counts) for column in (of_message, offsets, heads, ops))
        numbers = heads["queue_offset"] = heads["queue_offset"] + told.number
        ops["queue_offset"], ops["half_offset"], ops["position"] = numbers, told.half_offset, told.position
        tags = np.where(of_message, -1, np.where(ops["op_kind"] == OpKind.ASKED, _ASKED_TAG, ops["half_offset"]))
        inside = (numbers >= edge.op_begin) & (numbers < edge.op_end)
        self.seen[numbers[inside] - edge.op_begin] = True
        compare_queue(edge.op_queue, "op", offsets[inside], heads[inside], tags[inside])
        positions = np.where(ops["op_kind"] == OpKind.COMMIT, ops["position"], NO_POSITION)
        if of_message.any():
            messages = edge.gather(offsets[of_message], HALF_HEAD)
            self._messages.check(offsets[of_message], messages)
            keys = queue_key(messages["topic_no"].astype(np.int64), messages["queue_id"])
            edge.log.add_where(
                offsets[of_message], queue_key_of(messages["position"]) != keys, 112, "a message with another queue's place"
            )
            positions[of_message] = messages["position"]
        real = ~of_message
        self._check_about(offsets[real], ops[real], told.member[real])
        placed = positions != NO_POSITION
        about = np.where(of_message, -1, ops["half_offset"])
        self.places.check(offsets[placed], positions[placed], of_message[placed])
        self._releases.match(offsets[placed], numbers[placed], positions[placed], about[placed], of_message[placed])
        own = real & ~told.member
        self._ends.apply(offsets[own], ops[own])

    def _limit(self) -> int:
        """Halves from it on do not lie before these ops."""
        return self._halves.numbers.following if self._halves.numbers.following is not None else self._edge.half_end

    def _check_op_heads(self, offsets: Ints, ops: Array) -> None:
        edge, kind, with_items = self._edge, ops["op_kind"], ops["frame_flags"] & OP_ITEMS != 0
        edge.log.add_where(offsets, (kind < OpKind.COMMIT) | (kind > OpKind.RESUME), 52, "an op of an unknown kind")
        edge.log.add_where(offsets, ops["via"] > max(Via), 53, "an op with an unknown via")
        rest = ops["size_bytes"].astype(np.int64) - OP_HEAD.itemsize - ops["detail_bytes"]
        unit = np.where(kind == OpKind.ASKED, 8, np.where(with_items, ITEM.itemsize, 0))
        wrong = np.where(unit > 0, (rest < unit) | (rest % np.maximum(unit, 1) != 0), rest != 0)
        edge.log.add_where(offsets, wrong, 54, "detail does not fill the frame")
        edge.log.add_where(
            offsets, (kind == OpKind.COMMIT) != (ops["position"] != NO_POSITION), 40, "a place that does not fit the kind"
        )
        if (ops["frame_flags"] != 0).any():
            odd = (ops["frame_flags"] == OP_JOINT) | (with_items & (kind != OpKind.COMMIT) & (kind != OpKind.ROLLBACK))
            edge.log.add_where(offsets, odd, 11, "flags that no writer sets")
            if TRANSACTIONS not in edge.directory.needs:
                edge.log.add_where(offsets, with_items, 11, f"items of {TRANSACTIONS}, which format.json does not have")
        if not edge.quick:
            self._check_details(offsets, ops, self._limit())

    def _check_about(self, offsets: Ints, ops: Array, member: Any) -> None:
        """Each half that an op speaks of."""
        edge, kind, half, limit = self._edge, ops["op_kind"], ops["half_offset"], self._limit()
        of_asked = kind == OpKind.ASKED
        edge.log.add_where(
            offsets, np.where(of_asked, half != -1, (half < 0) | (half >= limit)), 32, "speaks of a half that is not before it"
        )
        inside = ~of_asked & (half >= edge.half_begin) & (half < edge.half_end)
        at = half[inside] - edge.half_begin
        seen = self._halves.seen(at)
        wrong_group = seen & (self._halves.group[at] != ops["group_no"][inside])
        edge.log.add_where(offsets[inside], wrong_group, 48, "another group than its half's")
        wrong_queue = seen & (kind[inside] == OpKind.COMMIT) & (queue_key_of(ops["position"][inside]) != self._halves.key[at])
        edge.log.add_where(offsets[inside], wrong_queue, 40, "a place in another queue than its half's")
        of_member = seen & (self._halves.head[at] >= 0) & (kind[inside] != OpKind.UNKNOWN)
        edge.log.add_where(
            offsets[inside], of_member != (seen & member[inside]), 32, "a member as a half of its own, or the reverse"
        )

    def _check_details(self, offsets: Ints, ops: Array, limit: int) -> None:
        edge = self._edge
        with_tail = np.flatnonzero(ops["size_bytes"] > OP_HEAD.itemsize)
        for index in with_tail.tolist():
            offset, size, detail = int(offsets[index]), int(ops["size_bytes"][index]), int(ops["detail_bytes"][index])
            content = edge.log.read(offset + OP_HEAD.itemsize, size - OP_HEAD.itemsize).tobytes()
            try:
                good = isinstance(json.loads(content[:detail] or b"{}"), dict)
            except ValueError:
                good = False
            if not good:
                edge.log.add(offset + OP_HEAD.itemsize, "detail is not a JSON object")
            if ops["op_kind"][index] == OpKind.ASKED and (size - OP_HEAD.itemsize - detail) % 8 == 0:
                asked = np.frombuffer(content[detail:], "<i8")
                if ((asked < 0) | (asked >= limit)).any():
                    edge.log.add(offset + OP_HEAD.itemsize + detail, "asked about a half that is not before it")

    def check_entries_left(self, walk: LogWalk) -> None:
        edge = self._edge
        check_entries_left(edge.op_queue, "op", edge.op_begin, self.seen, walk)
