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
