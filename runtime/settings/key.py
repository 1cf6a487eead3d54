"""`Key`: everything that is known about a setting except its value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from runtime.settings.units import DURATION_MS, DURATION_NAMES, duration_text, size_text

PREFIX: Final = "ESCROW_"


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `section` and `field` are filled in when the sections are put together (`values.KEYS`)."""

    name: str
    kind: str  # duration, size, count, switch, choice, text, path, names
    default: str  # as it stands in the file: TOML
    doc: str
    section: str = ""
    unit_ms: int = 1  # duration: the unit of a bare integer
    least: int | None = None
    most: int | None = None
    multiple: int = 1
    choices: tuple[str, ...] = ()
    sub_second: bool = True  # duration: False = whole seconds; a bare integer below 1,000 ms gets a warning
    secret: bool = False
    remedy: str = ""
    field: str = ""

    @property
    def variable(self) -> str:
        return PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.name).upper()

    @property
    def unit(self) -> str:
        if self.kind == "duration":
            bare = next(unit for unit, ms in DURATION_MS.items() if ms == self.unit_ms)
            example = duration_text(6_000 if self.unit_ms == 1 else 72 * self.unit_ms)
            return f'a time such as "{example}"; a bare integer is in {DURATION_NAMES[bare]}'
        if self.kind == "size":
            return 'a size such as "64MiB"; a bare integer is in bytes'
        if self.kind == "choice":
            return " | ".join(self.choices)
        if self.kind == "names":
            return 'a list of names, ["one", "two"]; in a variable or flag: one,two'
        return {"count": "a whole number", "switch": "true | false", "text": "text", "path": "a path"}[self.kind]

    def shown(self, value: int) -> str:
        """A bound or a value in the key's unit."""
        if self.kind == "duration":
            return duration_text(value)
        return size_text(value) if self.kind == "size" else str(value)

    def written(self, value: Any) -> object:
        """A value as the file would have it: times and sizes with their unit."""
        if self.kind == "duration":
            return duration_text(value)
        if self.kind == "size":
            text = size_text(value)
            return value if text.isdigit() else text
        if self.kind == "names":
            return list(value)
        return str(value) if self.kind == "path" else value
