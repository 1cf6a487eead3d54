"""Random damage to the files of a store: bit flips, zeros, truncation, removal, exchange, and files from an older copy."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

KINDS = ("flip", "flip", "flip", "zero", "truncate", "delete", "delete all", "swap", "old", "old")
_PASSED_OVER = (".lock", ".wake", ".new")


@dataclass(frozen=True, slots=True)
class Damage:
    kind: str
    #: Paths relative to the store that are not what they were.
    names: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {' '.join(self.names)} {self.detail}".rstrip()


def category(name: str) -> str:
    """What kind of file it is: the directory that its segments lie in, or its own name."""
    parts = Path(name).parts
    if parts[0] != "transaction":
        return parts[0]
    return "redolog" if parts[1] == "redolog" else parts[1] if len(parts) < 4 else parts[2]


class Vandal:
    """Damages a store; everything by the given random numbers."""

    def __init__(self, root: Path, snapshot: Path, pick: random.Random) -> None:
        self._root, self._snapshot, self._pick = root, snapshot, pick

    def _files(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in sorted(self._root.rglob("*")):
            if path.is_file() and not path.name.endswith(_PASSED_OVER):
                name = path.relative_to(self._root).as_posix()
                found.setdefault(category(name), []).append(name)
        return found

    def strike(self) -> Damage | None:
        """One damage; None where nothing changed by it."""
        files = self._files()
        pick, names = self._pick, files[self._pick.choice(sorted(files))]
        kind, name = pick.choice(KINDS), pick.choice(names)
        path = self._root / name
        if kind == "delete all":
            for each in names:
                (self._root / each).unlink()
            return Damage(kind, tuple(names))
        if kind == "swap":
            return self._swap(name, pick.choice(names if len(names) > 1 else [each for some in files.values() for each in some]))
        if kind == "old":
            return self._old(path, name)
        return self._change(kind, path, name)

    def _change(self, kind: str, path: Path, name: str) -> Damage | None:
        content = path.read_bytes()
        if kind == "delete":
            path.unlink()
            return Damage(kind, (name,))
        if not content:
            return None
        used = len(content.rstrip(b"\0")) or len(content)
        at = self._pick.randrange(used if self._pick.random() < 0.9 else len(content))
        if kind == "truncate":
            path.write_bytes(content[:at])
            return Damage(kind, (name,), f"at {at}")
        size = 1 if kind == "flip" else self._pick.choice((1, 16, 512, 4096))
        changed = bytearray(content)
        if kind == "flip":
            changed[at] ^= 1 << self._pick.randrange(8)
        else:
            changed[at : at + size] = bytes(len(changed[at : at + size]))
        path.write_bytes(changed)
        return Damage(kind, (name,), f"at {at}") if bytes(changed) != content else None

    def _swap(self, name: str, other: str) -> Damage | None:
        first, second = (self._root / each for each in (name, other))
        contents = first.read_bytes(), second.read_bytes()
        if contents[0] == contents[1]:
            return None
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        return Damage("swap", (name, other))

    def _old(self, path: Path, name: str) -> Damage | None:
        older = self._snapshot / name
        if not older.is_file() or older.read_bytes() == path.read_bytes():
            return None
        shutil.copyfile(older, path)
        return Damage("old", (name,))
