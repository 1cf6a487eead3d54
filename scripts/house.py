"""The house's measures, for `make lint`: how long modules and classes may be, how many modules share a directory, what tests may
import from each other, and which of them start processes.

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

#: What tests import from each other: doubles and helpers, and programs that are no tests.
SHARED: Final = ("tests.support", "tests.campaigns", "tests.fixtures")
#: A test that imports one of these starts processes: it does not belong into tests/unit.
STARTS: Final = (
    "subprocess", "multiprocessing", "tests.support.edge_process", "tests.support.endpoint", "tests.support.standin",
    "tests.support.supervised", "tests.support.postgres",
)  # fmt: skip
#: Some of their tests start a short-lived child: a tool, a fresh interpreter, a database. This list only gets shorter, too.
WITH_A_CHILD: Final = frozenset(
    {
        "tests/unit/benchmarks/test_results.py",
        "tests/unit/conf/test_prometheus.py",
        "tests/unit/ingest/rocketmq/test_stubs.py",
        "tests/unit/runtime/commands/test_store.py",
        "tests/unit/runtime/test_settings.py",
        "tests/unit/runtime/test_tracing.py",
        "tests/unit/sdk/test_barrier.py",
        "tests/unit/sdk/test_otel.py",
        "tests/unit/sdk/test_producer.py",
        "tests/unit/sdk/test_tools.py",
        "tests/unit/sdk/test_transport.py",
        "tests/unit/store/io/test_descriptors.py",
        "tests/unit/store/io/test_disk.py",
        "tests/unit/store/read/test_many_topics.py",
        "tests/unit/store/test_directory.py",
        "tests/unit/streaming/spark/test_jars.py",
        "tests/unit/test_compose.py",
        "tests/unit/test_docs.py",
        "tests/unit/test_supply_chain.py",
    }
)

OVER: Final = frozenset(
    {
        "scripts/dashboards.py",
        "tests/campaigns/fuzz/hostile.py",
        "tests/kafka/test_cases.py",
        "tests/support/fake_escrow.py",
        "tests/unit/ingest/consuming/test_consumption.py",
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
    found = complaints(dict(measured(root)), OVER) + silent(root) + entangled(root) + processes(root, WITH_A_CHILD)
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


def entangled(root: Path) -> list[str]:
    """Tests that import from other tests than tests/support."""
    return [
        f"{name}: imports {imported}: move what it wants to tests/support"
        for name, path in modules(root)
        for imported in imports(path)
        if name.startswith("tests/") and not name.startswith("tests/campaigns/")
        and imported.startswith("tests.") and not f"{imported}.".startswith(tuple(f"{each}." for each in SHARED))
    ]  # fmt: skip


def processes(root: Path, known: frozenset[str] = frozenset()) -> list[str]:
    """Tests in tests/unit that start processes and are not known to; those that are known to, and do not."""
    starting = {
        name for name, path in modules(root) if name.startswith("tests/unit/") and not set(STARTS).isdisjoint(imports(path))
    }
    new = [f"{name}: starts processes: move it to tests/endpoint, or to where its kind is" for name in starting - known]
    cured = [f"{name}: starts no process: take it off WITH_A_CHILD in scripts/house.py" for name in known - starting]
    return sorted(new + cured)


def imports(path: Path) -> list[str]:
    """Modules that a file imports, anywhere in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.append(node.module)
    return found


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
