"""scripts/house.py: what is over a measure is refused, and so is an entry of its list that is within it."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import house


@pytest.fixture
def root(tmp_path: Path) -> Path:
    room = tmp_path / "store"
    room.mkdir()
    (room / "__init__.py").write_text('"""The store."""\n')
    return tmp_path


def test_modules_classes_and_directories_have_a_measure(root: Path) -> None:
    (root / "store" / "long.py").write_text("# a comment\n\nx = 1\n" * (house.MODULE_LINES + 1))
    (root / "store" / "class.py").write_text("class Long:\n" + "    x = 1\n" * house.CLASS_LINES)
    assert dict(house.measured(root)).keys() == {"store/long.py", "store/class.py: class Long"}

    for number in range(house.MODULES_OF_A_DIRECTORY - 2):
        (root / "store" / f"m{number}.py").touch()
    assert "store" not in dict(house.measured(root))
    (root / "store" / "one_more.py").touch()
    assert "store" in dict(house.measured(root))


def test_what_is_just_within_its_measure_is_not_named(root: Path) -> None:
    (root / "store" / "long.py").write_text("x = 1\n" * house.MODULE_LINES)
    (root / "store" / "class.py").write_text("class Long:\n" + "    x = 1\n" * (house.CLASS_LINES - 1))
    assert dict(house.measured(root)) == {}


def test_the_list_of_what_is_over_only_gets_shorter() -> None:
    over = {"a.py": "500 lines of code, at most 400"}
    assert house.complaints(over, frozenset({"a.py"})) == []
    (new,) = house.complaints(over, frozenset())
    assert new.startswith("a.py: 500 lines")
    (cured,) = house.complaints({}, frozenset({"a.py"}))
    assert cured.startswith("a.py: is within its measure")


def test_a_directory_of_a_room_says_what_lives_there(root: Path) -> None:
    assert house.silent(root) == []
    (root / "store" / "__init__.py").write_text("")
    (complaint,) = house.silent(root)
    assert complaint.startswith("store/__init__.py: has no docstring")


def test_tests_import_from_each_other_by_support_alone(root: Path) -> None:
    """`tests.campaigns` and the makers of fixtures are programs, not tests."""
    unit = root / "tests" / "unit"
    unit.mkdir(parents=True)
    (unit / "test_good.py").write_text("from tests.support.world import World\nfrom tests.campaigns.fuzz import hostile\n")
    assert house.entangled(root) == []
    for number, line in enumerate(
        ("from tests.unit.test_good import x", "import tests.unit.test_good", "from tests.e2e import conftest")
    ):
        (unit / f"test_bad{number}.py").write_text(line + "\n")
    found = house.entangled(root)
    assert [line.split(":")[0] for line in found] == [f"tests/unit/test_bad{number}.py" for number in range(3)]
    assert "tests/support" in found[0]


@pytest.mark.parametrize("line", ["import subprocess", "from tests.support.endpoint import Endpoint", "import multiprocessing"])
def test_what_starts_the_endpoint_is_not_called_unit(root: Path, line: str) -> None:
    for name in ("tests/unit", "tests/endpoint"):
        (root / name).mkdir(parents=True)
        (root / name / "test_it.py").write_text(line + "\n")
    (complaint,) = house.processes(root)
    assert complaint.startswith("tests/unit/test_it.py: starts processes")
    assert house.processes(root, frozenset({"tests/unit/test_it.py"})) == []
    (root / "tests" / "unit" / "test_it.py").write_text("")
    (cured,) = house.processes(root, frozenset({"tests/unit/test_it.py"}))
    assert "take it off" in cured
