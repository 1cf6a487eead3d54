"""What can be said of the docs without a service: blocks parse, links lead somewhere, every page is listed."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from scripts.configuration_page import PAGE, text_of_page
from tests.support.cases import CASES
from tests.support.pages import ROOT, PageError, PageRun, _fits, anchors, blocks, links, pages
from tests.support.texts import texts

LINKING = [*pages(), "CHANGELOG.md", "store/FORMAT.md", "benchmarks/RESULTS.md"]


@pytest.mark.parametrize("page", pages())
def test_every_block_parses_and_says_who_runs_it(page):
    for block in blocks(page):
        if block.language == "python":
            compile(block.given + block.text, block.where, "exec")
        else:
            script = block.text if block.language == "sh" else "\n".join(command for command, _ in block.commands())
            done = subprocess.run(["sh", "-n"], input=block.given + script, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, f"{block.where}: {done.stderr}"
        if block.run_by:
            assert Path(page).name in (ROOT / block.run_by).read_text(), f"{block.where}: {block.run_by} does not name this page"


@pytest.mark.parametrize("page", LINKING)
def test_every_link_leads_somewhere(page):
    broken = []
    for target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


ROOMS = "benchmarks|checker|conf|docs|examples|ingest|requirements|runtime|scripts|sdk|sinks|store|streaming|tests"
#: A path in backticks that begins with a room: no module in dotted form, no pattern, no data directory.
NAMED_PATH = re.compile(rf"`((?:{ROOMS})/[\w./-]*)(?:::\w+)?`")
#: A path in RocketMQ's own data directory.
NOT_OURS = {"store/transaction/statetable/"}


def missing_paths(text):
    """Paths that a page names and the checkout lacks. `x/y` may also be the module `x/y.py`."""
    named = sorted(set(NAMED_PATH.findall(text)) - NOT_OURS)
    return [path for path in named if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]


@pytest.mark.parametrize("page", LINKING)
def test_every_path_in_backticks_exists(page):
    assert missing_paths((ROOT / page).read_text()) == []


def test_a_path_that_is_missing_is_found():
    text = "`store/io/disk.py`, `store/io`, `store/io/disk`, `tests/unit/test_docs.py::test_x`, `store/io/disc.py`, `sinks/no/`"
    assert missing_paths(text) == ["sinks/no/", "store/io/disc.py"]


def test_the_tree_of_the_readme_is_the_tree():
    """Every room and shelf in it exists, and every package of a room is drawn or named in it."""
    tree = (ROOT / "README.md").read_text().partition("## Where things are\n\n```text\n")[2].partition("```")[0]
    parts = {Path(part.split("/")[0]): part for part in re.split(r"\n(?=\S)", tree)}
    for room, part in parts.items():
        first, *shelves = part.splitlines()
        base = first.split()[0]
        drawn = [base, *(base + name for line in shelves for name in re.findall(r"(\w+)/(?= |$)", line[:18]))]
        assert [path for path in drawn if not (ROOT / path).is_dir()] == []
        if (ROOT / room / "__init__.py").exists() and room != Path("benchmarks"):
            packages = sorted(found.parent.name for found in (ROOT / room).glob("*/__init__.py"))
            assert [name for name in packages if not re.search(rf"\b{name}\b", part)] == []
    assert len(parts) > 10


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page for page in pages() if page.startswith("docs/") and f"({Path(page).name})" not in index] == ["docs/README.md"]


def test_the_page_of_settings_is_what_the_settings_say():
    assert PAGE.read_text() == text_of_page(), "run make pages"


# --- guarantees and their tests ---
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()


def functions(path):
    return {
        node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def test_every_test_that_a_guarantee_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", GUARANTEES)
    assert len(named) > 50
    missing = [f"{path}::{name}" for path, name in named if name and name not in functions(ROOT / path)]
    assert missing + [path for path, _ in named if not (ROOT / path).exists()] == []


def test_every_case_is_listed_with_the_tests_that_play_it():
    listed = (ROOT / "docs" / "cases.md").read_text().partition("## The cases")[2]
    rows = re.findall(r"^\| (\d+) \| .+? \| (.*?) \|$", listed, re.MULTILINE)
    assert {int(number): tuple(re.findall(r"`(\w+)`", tests)) for number, tests in rows} == {
        number: tests for number, (_, tests) in CASES.items()
    }


def test_no_text_cites_a_document_that_is_not_in_the_repository():
    """Rules and cases are cited as docs/cases.md, settings as docs/configuration.md."""
    absent = re.compile(r"\bspec(ification)?( §|\.md)|§ ?\d|seed-audit", re.IGNORECASE)
    assert [(where, found[0]) for where, text in texts("tests/unit/test_docs.py") if (found := absent.search(text))] == []


RECOMMENDED = re.compile(r"(?:pip3?|uv|pipx|poetry) (?:add|install)\b[^\n`]*?[\s'\"=]escrow(?![\w./-])")


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("pip install escrow", True),
        ("run pip install -U 'escrow[server]'", True),
        ('uv pip install "escrow[kafka]==0.1"', True),
        ("pip install escrow==0.1", True),
        ("pip install '.[server]'", False),
        ("pip install ./escrow-….whl", False),
        ("pip install ./escrow-audit", False),
        ("pip install escrow-mq", False),
    ],
)
def test_a_recommendation_is_told_from_a_path(text, is_found):
    assert bool(RECOMMENDED.search(text)) is is_found


def test_no_text_recommends_a_package_of_that_name():
    """On PyPI "escrow" is another project: whoever installs it runs a stranger's code."""
    assert [(where, found[0]) for where, text in texts("tests/unit/test_docs.py") if (found := RECOMMENDED.search(text))] == []


# --- the runner itself ---
def page_of(tmp_path, monkeypatch, text):
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr("tests.support.pages.ROOT", tmp_path)
    for name in (".venv", "conf", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "its-data").mkdir()
    return PageRun(tmp_path / "run", tmp_path / "its-data", {"7480": 1234})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("```sh\nfalse\ntrue\n```\n", "ends with 1"),
        ("<!-- docs: exits 1 -->\n```sh\ntrue\n```\n", "ends with 0"),
        ("```console\n$ echo 7480\n7480\n```\n", "promises"),
        ("```python\nraise ValueError('no')\n```\n", "ValueError: no"),
        ("```python\nprint(1)  # 2\n```\n", "promises '2'"),
        ("<!-- docs: whatever -->\n```sh\ntrue\n```\n", "is none of"),
        ("<!-- docs: skip: -->\n```sh\ntrue\n```\n", "is none of"),
    ],
)
def test_a_block_that_does_not_keep_its_word(tmp_path, monkeypatch, text, wrong):
    made = page_of(tmp_path, monkeypatch, text)
    with pytest.raises(PageError, match=wrong):
        made.run("page.md")
    made.close()


def test_what_a_page_may_do(tmp_path, monkeypatch):
    made = page_of(
        tmp_path,
        monkeypatch,
        "```sh\necho 7480 > file\ntest -d data\n```\n"
        "<!-- docs: given\nword=hello\n-->\n```console\n$ echo $word you\nhello …\n$ cat file\n1234\n```\n"
        "<!-- docs: apart -->\n```sh\ntest ! -e data\n```\n"
        "<!-- docs: skip: nobody has that program -->\n```sh\nno-such-program\n```\n"
        "```python\nx = 1\n```\n```python\nprint(x + 1)  # 2: it remembers\n```\n"
        "```toml\nnot = run\n```\n",
    )
    assert made.run("page.md") == 5
    made.close()


def test_what_an_ellipsis_stands_for():
    assert _fits("a … c\n", "a b\nb c\n")
    assert not _fits("a … c\n", "a b d\n")
