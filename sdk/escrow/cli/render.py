"""Records and reports as text for people and as JSON for programs.

Whatever a record holds cannot disturb a terminal or break a line: lines and reports are ASCII, tables are printable.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from enum import Enum
from numbers import Integral, Real

TEXT_BYTES_MAX = 64


def json_line(record: object) -> str:
    """One JSON document on one line. Bytes become ``{"base64": "..."}``, an enum its name."""
    return json.dumps(_plain(record), separators=(",", ":"))


def text_line(record: Mapping[str, object]) -> str:
    """One record as ``key=value key=value``; a value with blanks is quoted, long bytes are cut."""
    return " ".join(f"{key}={_word(value)}" for key, value in record.items())


def text_report(report: Mapping[str, object], indent: str = "") -> str:
    """A report as ``key: value`` lines, nested reports indented; sizes in bytes are also worded for people."""
    lines = []
    for key, value in report.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:")
            if value:
                lines.append(text_report(value, indent + "  "))
        else:
            lines.append(f"{indent}{key}: {_word(value)}{_human_size(key, value)}")
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns under their heads; numbers to the right, texts to the left."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(head), *(len(row[at]) for row in cells)) if cells else len(head) for at, head in enumerate(heads)]
    right = [bool(rows) and all(row[at] == "" or isinstance(row[at], Real | None) for row in rows) for at in range(len(heads))]
    lines = []
    for row in (list(heads), *cells):
        columns = zip(row, widths, right, strict=True)
        lines.append("  ".join(text.rjust(width) if to_right else text.ljust(width) for text, width, to_right in columns).rstrip())
    return "\n".join(lines)


def cell(value: object, most: int = 0) -> str:
    """A value in a table: printable characters only, at most so many; what is not there is a dash."""
    text = "-" if value is None else f"{value:,}" if isinstance(value, Integral) else str(value)
    text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return text[: most - 1] + "…" if most and len(text) > most else text


def middle(text: str, most: int) -> str:
    """A name cut in the middle: names of one team often differ at their end."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"


def _plain(value: object) -> object:
    """Turns a value into what ``json`` knows; numpy's numbers are numbers here."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


def _word(value: object) -> str:
    """One value of a text line."""
    if value is None:
        return "-"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes_word(bytes(value))
    plain = _plain(value)
    if not isinstance(plain, str):
        return json.dumps(plain, separators=(",", ":"))
    bare = plain.isascii() and plain.isprintable() and not set(plain) & set(" \"'=\\")
    return plain if plain and bare else json.dumps(plain)


def _bytes_word(value: bytes) -> str:
    head = value[:TEXT_BYTES_MAX]
    try:
        text = json.dumps(head.decode("ascii" if len(value) > TEXT_BYTES_MAX else "utf-8"))
    except UnicodeDecodeError:
        text = "0x" + head.hex()
    return text if len(value) <= TEXT_BYTES_MAX else f"{text}...({len(value)} bytes)"


def _human_size(key: str, value: object) -> str:
    if not key.endswith("_bytes") or not isinstance(value, Integral) or int(value) < 1024:
        return ""
    size = float(int(value))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f" ({size:.1f} {unit})"
        size /= 1024
    return f" ({size:.1f} TiB)"
