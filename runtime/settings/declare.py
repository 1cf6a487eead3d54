"""How `schema` declares a key: a dataclass field whose default and metadata come from one call."""

from __future__ import annotations

import tomllib
from dataclasses import field
from typing import Any, Final

from runtime.settings.key import Key
from runtime.settings.parse import parse

DAY_MS: Final = 86_400_000
#: Bounds of a port.
PORT: Final = {"least": 0, "most": 65_535}


def key(name: str, kind: str, default: str, doc: str, **rest: Any) -> Any:
    """A field and its key. `default` is TOML, as in the file; `rest` are further fields of `Key`."""
    declared = Key(name, kind, default, doc, **rest)
    value = parse(declared, tomllib.loads(f"v = {default}")["v"])
    return field(default=value, metadata={"key": declared})
