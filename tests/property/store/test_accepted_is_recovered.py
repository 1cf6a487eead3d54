"""Whatever the store accepts, it reads back: after a kill, by a rebuild, and from a backup.

Properties are the producer's own text. Names that resemble Escrow's own, separators, empty values and any Unicode are
either refused when they come, or recovered byte for byte.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from store.admin.backup import backup, restore
from store.admin.rebuild import rebuild
from store.edge.store import EdgeStore
from store.errors import InvalidRecord
from store.inspect.verify.store import verify
from store.job.store import JobStore
from store.messages import AlikeMessages, Message
from store.properties import DEDUP_KEY, DELAY_PROPERTIES, KEYS, OWN_PROPERTIES, TAGS, UNIQ_KEY
from tests.support.service import SMALLEST, T0_MS, drop

RESERVED = [*sorted(OWN_PROPERTIES | DELAY_PROPERTIES), KEYS, TAGS, UNIQ_KEY]
text = st.text(st.characters(codec=None), max_size=12)
pieces = st.sampled_from(["", "x", " ", "\x00", "\x01", "\x02", "\x03", "\ud800", "é", "\U0001f4b6", "=", "\n"])
#: Names and values that resemble reserved ones: before, behind and around them.
resembling = st.builds(lambda before, name, after: before + name + after, pieces, st.sampled_from(RESERVED), pieces)
names = st.one_of(st.sampled_from(RESERVED), resembling, text)
values = st.one_of(st.just(""), resembling, text, st.builds(lambda name, value: f"{name}\x01{value}\x02", names, text))
groups = st.one_of(st.sampled_from(["g", "PGROUP", "__DEDUP_KEY__", "%", "a|b"]), text)
messages = st.builds(
    Message,
    group=groups,
    topic=st.one_of(st.sampled_from(["t", "TAGS", "REAL_TOPIC", "__DEDUP_KEY__"]), text),
    body=st.one_of(st.binary(max_size=64), st.just(b"x__DEDUP_KEY__\x01k\x02")),
    properties=st.dictionaries(names, values, max_size=4),
    queue_id=st.one_of(st.none(), st.integers(-1, 70)),
    born_at_ms=st.integers(-(1 << 63) - 1, 1 << 63),
    flag=st.integers(-1, 1 << 32),
    immunity_s=st.integers(-5, 1 << 40),
    dedup_key=st.one_of(st.just(""), names, values),
)
alike = st.builds(
    lambda group, keys: AlikeMessages(group, "t", [b"b"] * len(keys), keys, [0] * len(keys)),
    groups,
    st.lists(names, min_size=8, max_size=12),
)
batches = st.lists(st.one_of(st.lists(messages, min_size=1, max_size=3), alike), min_size=1, max_size=5)


def stored(edge: EdgeStore, sent: Sequence[Sequence[Message]]) -> dict[int, tuple[bytes, dict[str, str]]]:
    """Sends each batch as halves and again as messages. (body, properties) of every half that was acknowledged."""
    found: dict[int, tuple[bytes, dict[str, str]]] = {}
    for batch in sent:
        try:
            offsets = edge.prepare(batch, T0_MS)
        except InvalidRecord:
            continue
        for offset in offsets:
            half = edge.read_half(offset)
            found[offset] = half.body, half.properties
        edge.wait(edge.append_messages([message._replace(dedup_key="") for message in batch], T0_MS).ticket)
    return found


def check(root: Path, sent: Sequence[Sequence[Message]], acknowledged: dict[int, tuple[bytes, dict[str, str]]], ops: int) -> None:
    """All that was acknowledged is there, and a repeated send with a dedup key leads to the same half."""
    with EdgeStore(root) as edge, JobStore(root):
        assert (edge.half_end, edge.op_end) == (len(acknowledged), ops)
        assert not edge.recovery.damage
        for offset, expected in acknowledged.items():
            half = edge.read_half(offset)
            assert (half.body, half.properties) == expected
        for message in [message for batch in sent for message in batch if message.dedup_key]:
            try:
                (offset,) = edge.prepare([message], T0_MS)
            except InvalidRecord:
                continue
            assert edge.read_half(offset).properties[DEDUP_KEY] == message.dedup_key
    assert verify(root).problems == []


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(sent=batches)
@example(sent=[[Message("g", "t", b"x", {"my__DEDUP_KEY__": "1"})]])
@example(sent=[[Message("g", "t", b"x", {"my__DEDUP_KEY__": "1"}, dedup_key="k")]])
@example(sent=[[Message("g", "t", b"x", {"n": "__DEDUP_KEY__", "FOOTAGS": "a", "KEYSX": ""})]])
def test_what_is_accepted_survives_a_kill_a_rebuild_and_a_restore(sent):
    base = Path(tempfile.mkdtemp(prefix="escrow-accepted-"))
    try:
        root = base / "store"
        edge = EdgeStore(root, geometry=SMALLEST, default_queues=1)
        acknowledged = stored(edge, sent)
        ops = edge.op_end
        drop(edge)
        shutil.copytree(root, base / "killed")
        backup(root, base / "backup")
        restore(base / "backup", base / "restored")
        rebuild(root)
        for place in ("killed", "store", "restored"):
            check(base / place, sent, acknowledged, ops)
    finally:
        shutil.rmtree(base)
