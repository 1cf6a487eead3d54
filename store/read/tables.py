"""The store's history as tables of columns: transactions, ops and checks. Reads only, and may run beside the writers.

    transactions   a row for each half: what became of it
    ops            a row for each thing that was said about a half, in log order
    checks         a row for each hand-over of a check request, with the answer that followed

A scan covers a range of half offsets, so that ranges can be read one by one, or by several tasks beside each other. Of the op log
a range reads the tags of all ops since its first half was stored (20 bytes an op), and the frames of its own ops alone.

Columns are arrays. `Column` says what its numbers mean, so that readers make lists or Arrow of them without a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from store.errors import Corrupt
from store.properties import Texts
from store.read.export_scan import Chunk, History, Wanted
from store.records import OP, QUEUE_ID_BITS, OpKind, State, Via, queue_key_of, queue_offset_of
from store.tables.consume_queue import ASKED_TAG
from store.tables.frames import OP_HEAD

Array = np.ndarray[Any, Any]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Transaction ids of (half_offsets, group_nos), as bytes of one width.
Seal = Callable[[Ints, Array], Array]

#: By number of State.
STATE_WORDS: Final = ["", "pending", "committed", "rolled_back", "discarded", "discarded", "quarantined"]
REASON_WORDS: Final = ["", "", "", "", "check_max", "expired", ""]
OUTCOME_WORDS: Final = ["", "", "commit", "rollback", "", "", ""]
VIA_WORDS: Final = [via.name.lower() for via in Via]
#: By number of OpKind.
OP_WORDS: Final = ["", "committed", "rolled_back", "discarded", "discarded", "unknown", "asked", "resumed", "message"]
_ANSWERS: Final = (int(OpKind.COMMIT), int(OpKind.ROLLBACK), int(OpKind.UNKNOWN))
_ANSWER_WORDS: Final = ["", "commit", "rollback", "", "", "unknown", "", "", ""]
_OPS_AT_ONCE: Final = 1 << 20

#: name → what its values are: text, time (ms), int, long, double.
COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "transactions": {
        "id": "text", "group": "text", "topic": "text", "key": "text", "tags": "text", "state": "text", "outcome": "text",
        "reason": "text", "settled_by": "text", "stored_at": "time", "born_at": "time", "settled_at": "time",
        "duration_s": "double", "attempts": "int", "immunity_s": "long", "body_bytes": "long", "queue_id": "int",
        "queue_offset": "long", "half_offset": "long",
    },
    "ops": {
        "id": "text", "group": "text", "topic": "text", "op": "text", "at": "time", "by": "text", "actor": "text", "remark": "text",
        "reason": "text", "queue_id": "int", "queue_offset": "long", "half_offset": "long", "op_offset": "long",
    },
    "checks": {
        "id": "text", "group": "text", "topic": "text", "attempt": "int", "asked_at": "time", "member": "text",
        "answered_at": "time", "answer": "text", "answer_s": "double", "stored_at": "time",
        "half_offset": "long", "op_offset": "long",
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """Values of rows. With `names`, they are numbers of these. `missing`: which are null."""

    values: Any
    missing: Mask | None = None
    names: Sequence[str] | None = None


Table = dict[str, Column]


class Tables:
    """A store opened for reading its tables. `columns`: which are wanted; what others cost is saved."""

    def __init__(self, root: Path, seal: Seal | None) -> None:
        self.history = History(root)
        self._seal = seal

    def close(self) -> None:
        self.history.close()

    def extent(self, wanted: Wanted) -> tuple[int, int]:
        """(first half, behind the last one) of the asked time, as far as is known without reading them."""
        return self.history.extent(wanted)

    def scan(self, table: str, first: int, stop: int, wanted: Wanted, columns: Sequence[str] | None = None) -> Iterator[Table]:
        """Rows of halves first … stop - 1, some at a time."""
        chosen = list(COLUMNS[table]) if columns is None else list(columns)
        with_texts = table == "transactions" and not {"key", "tags"}.isdisjoint(chosen)
        for chunk in self.history.between(first, stop, wanted, with_texts=with_texts):
            found = self._transactions(chunk, chosen) if table == "transactions" else self._said(table, chunk, chosen)
            yield {name: found[name] for name in chosen}

    # --- transactions -----------------------------------------------------------------------------------------------------------
    def _transactions(self, chunk: Chunk, chosen: Sequence[str]) -> Table:
        heads, ended, state = chunk.heads, chunk.ended, chunk.ended["state"]
        unread = ~chunk.valid  # corrupt, or taken out of the log by retention: neither times nor names
        # Without a time where retention has taken its op, too: only the row is left.
        untold = np.isin(state, (State.PREPARED, State.QUARANTINED)) | (ended["settled_at_ms"] == 0)
        no_place = untold | (state != State.COMMITTED)
        return {
            **self._ids(chosen, chunk.half_offsets, heads["group_no"], unread),
            "group": _named(heads["group_no"], self.history.groups, unread),
            "topic": _named(heads["topic_no"], self.history.topics, unread),
            "key": Column(chunk.keys, chunk.keys.missing),
            "tags": Column(chunk.tags, chunk.tags.missing),
            "state": _named(state, STATE_WORDS, state == 0),
            "outcome": _named(state, OUTCOME_WORDS, ~np.isin(state, (State.COMMITTED, State.ROLLED_BACK))),
            "reason": _named(state, REASON_WORDS, ~np.isin(state, (State.DISCARDED_MAX, State.DISCARDED_EXPIRED))),
            "settled_by": _named(ended["via"], VIA_WORDS, untold),
            "stored_at": Column(heads["stored_at_ms"], unread),
            "born_at": Column(heads["born_at_ms"], unread | (heads["born_at_ms"] == 0)),
            "settled_at": Column(ended["settled_at_ms"], untold),
            "duration_s": Column((ended["settled_at_ms"] - heads["stored_at_ms"]) / 1000, untold | unread),
            "attempts": Column(chunk.attempts),
            "immunity_s": Column(heads["immunity_s"], unread),
            "body_bytes": Column(heads["body_bytes"], unread),
            "queue_id": Column(queue_key_of(ended["position"]) & ((1 << QUEUE_ID_BITS) - 1), no_place),
            "queue_offset": Column(queue_offset_of(ended["position"]), no_place),
            "half_offset": Column(chunk.half_offsets),
        }

    def _ids(self, chosen: Sequence[str], half_offsets: Ints, group_nos: Array, unread: Mask) -> Table:
        if "id" not in chosen:
            return {}
        if self._seal is None:
            return {"id": Column(np.zeros(len(half_offsets), "S1"), np.ones(len(half_offsets), np.bool_))}
        return {"id": Column(self._seal(half_offsets, group_nos), unread)}

    # --- ops and checks ---------------------------------------------------------------------------------------------------------
    def _said(self, table: str, chunk: Chunk, chosen: Sequence[str]) -> Table:
        """What was said about the halves of a chunk."""
        ops, rows = self._ops_of(chunk)
        return self._ops(chunk, ops, rows, chosen) if table == "ops" else self._checks(chunk, ops, rows, chosen)

    def _ops_of(self, chunk: Chunk) -> tuple[Array, Ints]:
        """(ops about these halves in log order, the row of the chunk that each speaks of)."""
        log, halves = self.history.log, chunk.half_offsets
        times = chunk.heads["stored_at_ms"][chunk.valid]
        low, stop = log.ops_since(int(times.min()) if len(times) else 0)
        pieces = [np.zeros(0, OP)]
        while low < stop:
            high = min(stop, low + _OPS_AT_ONCE)
            tags = log.op_queue.read(low, high)["tags_code"]
            near = np.flatnonzero(((tags >= halves[0]) & (tags <= halves[-1])) | (tags == ASKED_TAG))
            pieces.append(log.chosen_ops(low + near))
            low = high
        ops = np.concatenate(pieces)
        ops = ops[(ops["corrupt"] == 0) & (ops["kind"] != int(OpKind.MESSAGE))]
        rows = np.minimum(np.searchsorted(halves, ops["half_offset"]), len(halves) - 1)
        mine = halves[rows] == ops["half_offset"]
        return ops[mine], rows[mine]

    def _ops(self, chunk: Chunk, ops: Array, rows: Ints, chosen: Sequence[str]) -> Table:
        kinds, no_place = ops["kind"], ops["position"] < 0
        details = self._details(ops) if not {"actor", "remark"}.isdisjoint(chosen) else []
        discarded = np.isin(kinds, (int(OpKind.DISCARD_MAX), int(OpKind.DISCARD_EXPIRED)))
        reasons = np.where(kinds == int(OpKind.DISCARD_MAX), int(State.DISCARDED_MAX), int(State.DISCARDED_EXPIRED))
        return {
            **self._about(chunk, rows, chosen),
            "op": _named(kinds, OP_WORDS, np.zeros(len(ops), np.bool_)),
            "at": Column(ops["stored_at_ms"]),
            "by": _named(ops["via"], VIA_WORDS, np.zeros(len(ops), np.bool_)),
            "actor": Column([detail.get("actor") for detail in details]),
            "remark": Column([detail.get("remark") for detail in details]),
            "reason": _named(reasons, REASON_WORDS, ~discarded),
            "queue_id": Column(queue_key_of(ops["position"]) & ((1 << QUEUE_ID_BITS) - 1), no_place),
            "queue_offset": Column(queue_offset_of(ops["position"]), no_place),
            "half_offset": Column(ops["half_offset"]),
            "op_offset": Column(ops["op_offset"]),
        }

    def _checks(self, chunk: Chunk, ops: Array, rows: Ints, chosen: Sequence[str]) -> Table:
        """An answer belongs to the last hand-over before it."""
        order = np.lexsort((ops["op_offset"], ops["half_offset"]))
        ops, rows = ops[order], rows[order]
        asked = np.flatnonzero(ops["kind"] == int(OpKind.ASKED))
        following = np.minimum(asked + 1, max(len(ops) - 1, 0))
        answered = (following > asked) & (ops["half_offset"][following] == ops["half_offset"][asked])
        answered &= np.isin(ops["kind"][following], _ANSWERS) & (ops["via"][following] == int(Via.CHECK))
        said, then = ops[asked], ops[following]
        members = [detail.get("actor") for detail in self._details(said)] if "member" in chosen else []
        stored_at_ms = chunk.heads["stored_at_ms"][rows[asked]]
        return {
            **self._about(chunk, rows[asked], chosen),
            "attempt": Column(_count_of_each(said["half_offset"])),
            "asked_at": Column(said["stored_at_ms"]),
            "member": Column(members),
            "answered_at": Column(then["stored_at_ms"], ~answered),
            "answer": _named(then["kind"], _ANSWER_WORDS, ~answered),
            "answer_s": Column((then["stored_at_ms"] - said["stored_at_ms"]) / 1000, ~answered),
            "stored_at": Column(stored_at_ms, ~chunk.valid[rows[asked]]),
            "half_offset": Column(said["half_offset"]),
            "op_offset": Column(said["op_offset"]),
        }

    def _about(self, chunk: Chunk, rows: Ints, chosen: Sequence[str]) -> Table:
        """Id, group and topic of the halves that ops speak of."""
        heads, unread = chunk.heads[rows], ~chunk.valid[rows]
        return {
            **self._ids(chosen, chunk.half_offsets[rows], heads["group_no"], unread),
            "group": _named(heads["group_no"], self.history.groups, unread),
            "topic": _named(heads["topic_no"], self.history.topics, unread),
        }

    def _details(self, ops: Array) -> list[Mapping[str, str]]:
        """Actor and remark of ops; those of many halves are read once."""
        log, known = self.history.log, dict[int, Mapping[str, str]]()
        sizes, found = ops["size_bytes"].tolist(), list[Mapping[str, str]]()
        for op_offset, size in zip(ops["op_offset"].tolist(), sizes, strict=True):
            if size <= OP_HEAD.itemsize:
                found.append(_NO_DETAIL)
                continue
            if op_offset not in known:
                try:
                    known[op_offset] = log.frame(log.op_queue.read(op_offset, op_offset + 1)[0]).detail
                except (Corrupt, IndexError):
                    known[op_offset] = _NO_DETAIL
            found.append(known[op_offset])
        return found


_NO_DETAIL: Final[Mapping[str, str]] = {}


def _count_of_each(sorted_values: Ints) -> Ints:
    """1, 2, 3 … within each run of equal values."""
    count = len(sorted_values)
    begins = np.flatnonzero(np.diff(sorted_values, prepend=sorted_values[:1] - 1)) if count else np.zeros(0, np.int64)
    lengths = np.diff(np.append(begins, count))
    return np.asarray(np.arange(count) - np.repeat(begins, lengths) + 1)


def _named(numbers: Array, names: Sequence[str], missing: Mask) -> Column:
    return Column(np.where(missing, 0, numbers).astype(np.int32), missing, names or [""])


def as_list(column: Column) -> list[Any]:
    """The values of a column; None where one is missing."""
    values = column.values
    if column.names is not None:
        names = column.names
        found = [names[number] for number in values.tolist()]
    elif isinstance(values, Texts):
        return list(values.tolist())
    elif isinstance(values, np.ndarray):
        found = [value.decode() for value in values.tolist()] if values.dtype.kind == "S" else values.tolist()
    else:
        found = values
    if column.missing is None or not column.missing.any():
        return list(found)
    return [None if gone else value for value, gone in zip(found, column.missing.tolist(), strict=True)]
