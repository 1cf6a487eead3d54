"""The house's measures, for `make lint`: how long modules and classes may be, how many modules share a directory.

What is over a measure today is listed with it. The lists only get shorter: an entry that is within its measure again is
refused, too: take it off with the change that cures it.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOMS: Final = ("store", "checker", "sinks", "streaming", "ingest", "runtime", "sdk/escrow")
TREES: Final = (*ROOMS, "benchmarks", "examples", "scripts", "tests")
#: Made from other files, or data.
ASIDE: Final = ("ingest/rocketmq/messaging_pb2.py", "tests/fixtures/")

#: Lines that are neither blank nor a comment alone.
MODULE_LINES: Final = 400
CLASS_LINES: Final = 300
#: Besides `__init__`.
MODULES_OF_A_DIRECTORY: Final = 12

OVER: Final = frozenset(
    {
        "scripts/dashboards.py",
        "tests/campaigns/fuzz/hostile.py",
        "tests/kafka/test_cases.py",
        "tests/support/fake_escrow.py",
        "tests/unit/ingest/consuming/test_consumption.py",
        "tests/unit/ingest/http/test_endpoint.py",
        "tests/unit/ingest/operating/test_operator.py",
        "tests/unit/sdk/test_producer.py",
        "tests/unit/store/edge/test_store.py",
        "tests/unit/store/job/test_retention.py",
        "tests/unit/streaming/settlement/test_cases.py",
        # directories
        "benchmarks",
        "sdk/escrow",
        "sdk/escrow/cli",
        "sinks/kafka",
        "tests/integration",
        "tests/kafka",
        "tests/support",
        "tests/unit/sdk",
    }
)


def main(root: Path) -> int:
    found = complaints(dict(measured(root)), OVER) + silent(root)
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


def complaints(over: dict[str, str], known: frozenset[str]) -> list[str]:
    """What is over a measure and not known, and what is known and within it."""
    new = [f"{name}: {how}: split it by task" for name, how in over.items() if name not in known]
    cured = [f"{name}: is within its measure: take it off OVER in scripts/house.py" for name in known - over.keys()]
    return sorted(new + cured)


def silent(root: Path) -> list[str]:
    """Directories of rooms that do not say what lives there."""
    directories = {path.parent for name, path in modules(root) if name.startswith(ROOMS)}
    return sorted(
        f"{path.relative_to(root)}/__init__.py: has no docstring: say what lives there and what may be used from outside"
        for path in directories
        if not ast.get_docstring(ast.parse((path / "__init__.py").read_text()))
    )


def measured(root: Path) -> Iterator[tuple[str, str]]:
    """(name, by how much) of everything that is over its measure."""
    directories: Counter[str] = Counter()
    for name, path in modules(root):
        content = path.read_text()
        lines = content.splitlines()
        directories[Path(name).parent.as_posix()] += path.name != "__init__.py"
        if (count := lines_of_code(lines)) > MODULE_LINES:
            yield name, f"{count} lines of code, at most {MODULE_LINES}"
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.ClassDef):
                count = lines_of_code(lines[node.lineno - 1 : node.end_lineno])
                if count > CLASS_LINES:
                    yield f"{name}: class {node.name}", f"{count} lines of code, at most {CLASS_LINES}"
    for name, count in directories.items():
        if count > MODULES_OF_A_DIRECTORY:
            yield name, f"{count} modules, at most {MODULES_OF_A_DIRECTORY}"


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    for tree in TREES:
        for path in sorted((root / tree).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(ASIDE):
                yield name, path


def lines_of_code(lines: list[str]) -> int:
    return sum(1 for line in lines if line.strip() and not line.lstrip().startswith("#"))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parents[1]))
