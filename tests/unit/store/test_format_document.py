"""FORMAT.md says what the code does: its tables are the dtypes, structs and enums, its example are real bytes."""

from __future__ import annotations

import importlib
import re
import struct
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import store
from checker.policy import Policy
from store import records
from store.directory import Geometry, StoreDirectory
from store.edge.store import EdgeStore, End
from store.inspect.verify.store import ROOT_NAMES, verify
from store.io import journal
from store.io.pages import EDGE_MAGIC, JOB_MAGIC, EdgeSlot
from store.job.store import JobStore
from store.messages import Message
from store.records import ENTRY, ROW, OpKind
from store.tables.frames import HALF_HEAD, OP_HEAD
from store.tables.journals import consumers
from store.tables.journals import names as dictionary
from store.tables.queue_extents import SLOT
from store.tables.redo_log import MARKER, TOTALS
from streaming.settlement.settle import Settler, read_feed

DOCUMENT = Path(store.__file__).with_name("FORMAT.md")
TEXT = DOCUMENT.read_text()
T0_MS = 1_800_000_000_000
TYPES: dict[str, Any] = {"u8": "u1", "u16": "<u2", "u32": "<u4", "i32": "<i4", "i64": "<i8", "8×i64": ("<i8", (8,))}


def tables(kind: str) -> list[tuple[str, list[list[str]]]]:
    """(words behind the kind, rows of cells) of every table with a comment `<!-- kind: … -->` above it."""
    found = []
    for match in re.finditer(rf"<!-- {kind}:? ?(.*?) ?-->\n((?:\|.*\n)+)", TEXT):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in match[2].splitlines()]
        found.append((match[1], rows[2:]))
    assert found, f"no tables of kind {kind}"
    return found


def resolve(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize(("name", "rows"), tables("layout"))
def test_layouts(name: str, rows: list[list[str]]) -> None:
    path, *fields = name.split()
    layout = resolve(path)
    offsets, types, names = [int(row[0]) for row in rows], [row[1] for row in rows], [row[2] for row in rows]
    if isinstance(layout, struct.Struct):
        assert fields in ([], names)
        code = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "i64": "q", "16s": "16s"}
        assert layout.format == "<" + "".join(code[kind] for kind in types)
        assert offsets == [struct.calcsize("<" + "".join(code[kind] for kind in types[:at])) for at in range(len(types))]
    else:
        assert tuple(names) == layout.names
        assert offsets == [layout.fields[field][1] for field in names]
        for kind, field in zip(types, names, strict=True):
            found = layout.fields[field][0]
            assert found == np.dtype(TYPES[kind]) if kind in TYPES else (found.kind in "SV" and found.itemsize == 16), field


def test_every_layout_of_the_code_has_a_table() -> None:
    named = {name.split()[0] for name, _ in tables("layout")}
    records_on_disk = {
        "store.records.ROW",
        "store.records.ENTRY",
        "store.tables.frames.HEAD",
        "store.tables.frames.HALF_HEAD",
        "store.tables.frames.OP_HEAD",
        "store.tables.frames.ITEM",
    }
    records_on_disk |= {
        "store.tables.redo_log.REDO",
        "store.tables.redo_log.MARKER",
        "store.tables.queue_extents.SLOT",
        "store.tables.dedup.SLOT_DTYPE",
    }
    assert named == records_on_disk | {
        "store.io.journal.HEAD",
        "store.tables.journals.names.RECORD",
        "store.tables.journals.consumers.RECORD",
    }


@pytest.mark.parametrize(("name", "rows"), tables("enum"))
def test_enums(name: str, rows: list[list[str]]) -> None:
    assert {row[1]: int(row[0]) for row in rows} == {member.name: member.value for member in resolve(name)}


def test_every_enum_on_disk_has_a_table() -> None:
    assert {resolve(name) for name, _ in tables("enum")} >= {
        member
        for module in (records, dictionary, consumers)
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, IntEnum)
        and member is not IntEnum
        and member.__module__ == module.__name__
    }


@pytest.mark.parametrize(("name", "rows"), tables("slots"))
def test_slots(name: str, rows: list[list[str]]) -> None:
    holder = resolve(name)
    slots = {key: value for key, value in vars(holder).items() if key.isupper() and isinstance(value, int) and value < 512}
    assert {row[1]: int(row[0]) for row in rows} == slots


def test_bits_of_the_state_word() -> None:
    _, rows = tables("bits")[0]
    for bits, field, *_ in rows:
        low, _, high = bits.partition("-")
        mask = (1 << int(high or low) + 1) - (1 << int(low))
        read = {"state": records.state_of, "outstanding": records.outstanding_of}.get(field) or getattr(
            records, f"{field.removesuffix('_s')}_of"
        )
        assert read(mask) == mask >> int(low), field
        assert read(0xFFFF_FFFF ^ mask) == 0, field


def test_magics_and_names_are_told() -> None:
    for magic in (EDGE_MAGIC, JOB_MAGIC, 0x43_55_52_53_E5C0, 0xE5C0):
        assert f"{magic:#x}".replace("0x", "0x").lower() in TEXT.lower()
    for name in ROOT_NAMES:
        assert f"`{name}" in TEXT, name
    for total in TOTALS:
        assert total in TEXT


# --- the worked example ---------------------------------------------------------------------------------------------------
SMALLEST = Geometry(64 << 10, 64, 64, 64, 64)


def make_example(root: Path) -> None:
    with EdgeStore(root, geometry=SMALLEST, default_queues=1) as edge:
        half = edge.prepare([Message("g", "t", b"hello", {"TAGS": "a"})], T0_MS)
        edge.end([End(half[0], OpKind.COMMIT, "g")], T0_MS + 1000)
        with JobStore(root) as job:
            Settler(job, Policy()).settle(read_feed(job.log, 0, 0), T0_MS + 2000)


def _number(value: Any) -> str:
    if isinstance(value, bytes):
        return "zeros" if not value.strip(b"\0") else value.hex()
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value} ({value:#x})" if value > 0xFFFF else str(value)


def _record(at: int, raw: bytes, dtype: np.dtype[Any]) -> list[tuple[int, bytes, str]]:
    """(offset, bytes, what) of each field of a record."""
    assert dtype.fields is not None
    record = np.frombuffer(raw, dtype, 1)[0]
    places = [(dtype.fields[name][1], dtype.fields[name][0].itemsize, name) for name in dtype.names or ()]
    return [(at + place, raw[place : place + size], f"{name} = {_number(record[name].tolist())}") for place, size, name in places]


def example_blocks(root: Path) -> list[tuple[str, str, list[tuple[int, bytes, str]]]]:
    """(title, path, lines) of the example."""
    directory = StoreDirectory(root)
    generation = directory.generation(1)
    zero = "0" * 20

    def read(path: Path, at: int, size: int) -> bytes:
        return path.read_bytes()[at : at + size]

    log = directory.commit_log / zero
    op_at = int(np.frombuffer(read(log, 0, 120), HALF_HEAD)[0]["size_bytes"])
    half_lines = _record(0, read(log, 0, 120), HALF_HEAD)
    half_lines += [(120, read(log, 120, 5), "body"), (125, read(log, 125, op_at - 125), "properties")]
    names, at = [], 0
    for end, payload in journal.decode((root / "dictionary").read_bytes()):
        raw = read(root / "dictionary", at, end - at)
        kind, queues, _, number = dictionary.RECORD.unpack_from(payload)
        names += [(at, raw[:4], f"payload_bytes = {len(payload)}"), (at + 4, raw[4:8], "crc")]
        names += [(at + 8, raw[8:16], f"{dictionary.NameKind(kind).name}, queues = {queues}, number = {number}")]
        names += [(at + 16, raw[16:], f"name = {payload[8:].decode()}")]
        at = end
    redo = directory.redo_log() / zero
    redo_lines = [(20 * slot, read(redo, 20 * slot, 20), what) for slot, what in enumerate(("IMAGE", "IMAGE_REST", "RELEASE"))]
    redo_lines += _record(60, read(redo, 60, 160), MARKER)
    page = read(root / "edge.published", 0, 64)
    slot_names = {value: name.lower() for name, value in vars(EdgeSlot).items() if name.isupper()}
    page_lines = [(8 * slot, page[8 * slot : 8 * slot + 8], slot_names.get(slot, "magic")) for slot in range(8)]
    return [
        ("The dictionary", "dictionary", names),
        ("The commit log: the half", f"commitlog/{zero}", half_lines),
        ("The commit log: the commit", f"commitlog/{zero}", _record(op_at, read(log, op_at, 56), OP_HEAD)),
        ("The half queue", f"half/0/{zero}", _record(0, read(directory.half_queue() / zero, 0, 20), ENTRY)),
        ("The op queue", f"op/0/{zero}", _record(0, read(directory.op_queue() / zero, 0, 20), ENTRY)),
        ("Ends", f"ends/0/{zero}", [(0, read(directory.ends() / zero, 0, 1), "half 0: COMMITTED")]),
        ("The published page of the edge", "edge.published", page_lines),
        ("The redo log", redo.relative_to(root).as_posix(), redo_lines),
        (
            "The state table",
            f"transaction/{generation.name}/statetable/0/{zero}",
            _record(0, read(generation / "statetable" / "0" / zero, 0, 24), ROW),
        ),
        (
            "The topic queue",
            f"transaction/{generation.name}/topics/0/0/{zero}",
            _record(0, read(generation / "topics" / "0" / "0" / zero, 0, 20), ENTRY),
        ),
        (
            "The catalogue",
            f"transaction/{generation.name}/catalogue/{zero}",
            _record(0, read(generation / "catalogue" / zero, 0, 24), SLOT),
        ),
    ]


def render_example(root: Path) -> str:
    parts = []
    for title, path, lines in example_blocks(root):
        text = "\n".join(f"{at:06x}  {raw.hex(' '):<59}  # {what}" for at, raw, what in lines)
        parts.append(f"**{title}**\n\n<!-- hex: {path} -->\n```text\n{text}\n```\n")
    checkpoint = (root / "edge.checkpoint").read_text()
    parts.append(f"**The checkpoint of the edge**\n\n<!-- text: edge.checkpoint -->\n```text\n{checkpoint}```\n")
    return "\n".join(parts)


def test_example(tmp_path: Path, regenerate_golden: bool) -> None:
    """The hex of FORMAT.md, read as a stranger would, is what the store writes."""
    root = tmp_path / "store"
    make_example(root)
    assert verify(root).problems == []
    begin, end = "<!-- example begin -->\n", "<!-- example end -->\n"
    if regenerate_golden:
        before, _, rest = TEXT.partition(begin)
        DOCUMENT.write_text(before + begin + render_example(root) + end + rest.partition(end)[2])
    text = DOCUMENT.read_text()
    blocks = re.findall(r"<!-- hex: (.*?) -->\n```text\n(.*?)```", text, re.S)
    assert len(blocks) == len(example_blocks(root))
    for path, block in blocks:
        content = (root / path).read_bytes()
        for line in block.splitlines():
            at, _, rest = line.partition("  ")
            raw = bytes.fromhex(rest.partition("#")[0])
            assert content[int(at, 16) : int(at, 16) + len(raw)] == raw, f"{path}: {line}"
    ((path, shown),) = re.findall(r"<!-- text: (.*?) -->\n```text\n(.*?)```", text, re.S)
    assert (root / path).read_text() == shown


def test_example_is_whole() -> None:
    """Frames of the example are complete: a reader can check their CRC with nothing but the page."""
    import zlib

    lines = [
        block for path, block in re.findall(r"<!-- hex: (.*?) -->\n```text\n(.*?)```", TEXT, re.S) if path.startswith("commitlog")
    ]
    log = b"".join(bytes.fromhex(line.partition("  ")[2].partition("#")[0]) for block in lines for line in block.splitlines())
    at = 0
    for _ in range(2):
        crc, size = struct.unpack_from("<II", log, at)
        assert zlib.crc32(log[at + 4 : at + size], at) == crc
        at += size
    assert at == len(log)


def test_unjudged_bytes_are_ranges() -> None:
    for _, rows in tables("unjudged"):
        for file, ranges, why in rows:
            assert file.startswith("`")
            assert why
            assert ranges == "all" or all(re.fullmatch(r"\d+-\d+", one.strip()) for one in ranges.split(","))
