"""Every case of docs/cases.md, and the tests that play it through real Spark with time injected.

Numbers that the page leaves out (7, 8, 12 …) are not cases. Below Spark the same cases are played on the store alone
(tests/unit/streaming/settlement/test_cases.py) and as pure rules (tests/unit/checker).
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.cases import CASES, NUMBERS, numbers_of

HERE = Path(__file__).parent
SPARK_FIXTURES = {"world", "make_world", "core", "make_core"}


def _tests() -> dict[str, set[str]]:
    """Name → arguments of every test function in this directory."""
    found = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = {argument.arg for argument in node.args.args}
    return found


def test_the_table_has_every_case():
    assert set(CASES) == NUMBERS


def test_every_case_has_a_test_that_runs_through_spark():
    tests = _tests()
    for number, (what, names) in CASES.items():
        assert names, what
        for name in names:
            assert tests[name] & SPARK_FIXTURES, f"case {number} ({what}): {name} does not use Spark"
            assert number in numbers_of(name), f"case {number} ({what}): {name} does not say so"


def test_every_test_that_names_a_case_is_in_the_table():
    for name, arguments in _tests().items():
        if arguments & SPARK_FIXTURES:
            for number in numbers_of(name):
                assert name in CASES[number][1], f"{name} plays case {number}"
