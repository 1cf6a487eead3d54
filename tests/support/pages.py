"""The blocks of README.md, CONTRIBUTING.md and docs/*.md, and how they are run. CONTRIBUTING.md explains the convention to writers.

A block is fenced and says its language. `sh`, `console` and `python` are run, in the order of the page, unless a comment directly
above says otherwise:

    <!-- docs: skip: REASON -->          not run here; it is parsed all the same
    <!-- docs: run by tests/PATH.py -->  another test runs it
    <!-- docs: apart -->                 in an empty directory, without the service
    <!-- docs: exits N -->               ends with this status
    <!-- docs: given … -->               code of the block's language that the reader need not see, run before it

A page has a directory of its own, where `data` is the running service's and `.venv`, `conf` and `examples` are the project's; 7480
and 7482 become the service's ports. `sh`: one shell a block, which ends at the first command that fails. `python`: all blocks of a
page share their names, and `print(…)  # text` must print that text (a colon ends it: what follows explains). `console`: lines with
`$ ` are commands, the others what they print, … stands for anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LANGUAGES = ("sh", "console", "python")
TIMEOUT_S = 240.0
#: `print(…)  # what it prints`, or `# what it prints: and why`
PROMISE = re.compile(r"^ *print\(.*\)  # (.*?)(?:: .*)?$", re.MULTILINE)
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- docs: (?P<mark>.*?) ?-->\n", re.DOTALL)
#: What a driver does with one block after another, and why the child lives as long as its page.
_DRIVER = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    code, where = json.loads(line)
    out = io.StringIO()
    trouble = ""
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(code, where, "exec"), names)
        except BaseException:
            trouble = traceback.format_exc()
    print(json.dumps([out.getvalue(), trouble]), flush=True)
"""


class PageError(AssertionError):
    """A block that does not do what its page says."""


@dataclass(frozen=True)
class Block:
    """One block that is run, or says why not."""

    page: str
    line: int
    language: str
    text: str
    skip: str = ""
    run_by: str = ""
    apart: bool = False
    exits: int = 0
    given: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs_here(self) -> bool:
        return not self.skip and not self.run_by

    def commands(self) -> list[tuple[str, str]]:
        """Of a console block: (command, what it prints)."""
        found: list[tuple[str, str]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], ""))
            elif found:
                found[-1] = (found[-1][0], found[-1][1] + line + "\n")
            else:
                raise PageError(f"{self.where}: a console block begins with '$ ' and a command")
        return found


def pages() -> list[str]:
    """Pages whose blocks are run."""
    return ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [_block(page, text, found) for found in _FENCE.finditer(text) if found["language"] in LANGUAGES]


def _block(page: str, text: str, found: re.Match[str]) -> Block:
    indent = found["indent"]
    lines = [line.removeprefix(indent) for line in found["text"].splitlines(keepends=True)]
    line = text.count("\n", 0, found.start()) + 1
    marks: dict[str, Any] = {}
    for mark in _marks_above(text[: found.start()]):
        marks |= _parse_mark(f"{page}:{line}", mark)
    return Block(page, line, found["language"], "".join(lines), **marks)


def _marks_above(before: str) -> Iterator[str]:
    """Comments that stand directly above, the nearest last."""
    found: list[str] = []
    while (start := before.rfind("<!-- docs: ")) >= 0:
        mark = _MARK.fullmatch(before[start:].rstrip(" "))
        if mark is None:
            break
        found.append(mark["mark"])
        before = before[:start]
    yield from reversed(found)


def _parse_mark(where: str, mark: str) -> dict[str, Any]:
    word, _, rest = mark.partition(" ")
    if mark.startswith("skip: ") and len(rest) > 8:
        return {"skip": rest}
    if mark.startswith("run by "):
        return {"run_by": mark.removeprefix("run by ")}
    if mark == "apart":
        return {"apart": True}
    if word == "exits" and rest.isdigit():
        return {"exits": int(rest)}
    if mark.startswith("given"):
        return {"given": mark.removeprefix("given").lstrip("\n ") + "\n"}
    raise PageError(f"{where}: <!-- docs: {mark} --> is none of skip: REASON, run by PATH, apart, exits N, given")


# --- running ---------------------------------------------------------------------------------------------------------------------
@dataclass
class PageRun:
    """Runs the blocks of one page against a service."""

    directory: Path
    data: Path
    ports: dict[str, int]
    environ: dict[str, str] = field(default_factory=dict)
    _python: subprocess.Popen[str] | None = None

    def run(self, page: str) -> int:
        """How many blocks were run; PageError at the first that fails."""
        self.directory.mkdir()
        for name in (".venv", "conf", "examples"):
            (self.directory / name).symlink_to(ROOT / name)
        (self.directory / "data").symlink_to(self.data)
        chosen = [block for block in blocks(page) if block.runs_here]
        for block in chosen:
            self._run(block)
        self._end_python()
        return len(chosen)

    def _run(self, block: Block) -> None:
        if block.language == "python":
            self._run_python(block)
        elif block.language == "sh":
            self._shell(block, block.given + block.text)
        else:
            for command, promised in block.commands():
                said = self._shell(block, block.given + command)
                if promised.strip() and not _fits(promised, said):
                    raise PageError(f"{block.where}: $ {command}\npromises:\n{promised}\nprints:\n{said}")

    def _shell(self, block: Block, script: str) -> str:
        done = subprocess.run(
            ["sh", "-e", "-c", self._fill(script)],
            cwd=self._place(block), env=self._environ(), stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if done.returncode != block.exits:
            raise PageError(f"{block.where}: ends with {done.returncode}\n{script}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                cwd=self._place(block), env=self._environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps([self._fill(block.given + block.text), block.where]) + "\n")
        self._python.stdin.flush()
        printed, trouble = json.loads(self._python.stdout.readline())
        if trouble:
            raise PageError(f"{block.where}: {trouble}")
        for promised in PROMISE.findall(block.text):
            if promised not in printed.splitlines():
                raise PageError(f"{block.where}: promises {promised!r}, prints:\n{printed}")

    def _end_python(self) -> None:
        if self._python is not None:
            self._python.communicate(timeout=TIMEOUT_S)

    def close(self) -> None:
        if self._python is not None and self._python.poll() is None:
            self._python.kill()
            self._python.communicate()

    def _place(self, block: Block) -> Path:
        if not block.apart:
            return self.directory
        place = self.directory / f"apart-{block.line}"
        place.mkdir(exist_ok=True)
        return place

    def _fill(self, text: str) -> str:
        for port, ours in self.ports.items():
            text = re.sub(rf"\b{port}\b", str(ours), text)
        return text

    def _environ(self) -> dict[str, str]:
        path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "NO_COLOR": "1", **self.environ}


def _fits(promised: str, said: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in promised.strip().split("…"))
    return re.fullmatch(pattern, said.strip(), re.DOTALL) is not None


# --- links -----------------------------------------------------------------------------------------------------------------------
_LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")


def links(page: str) -> list[str]:
    """Targets of a page's links, outside of code."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", (ROOT / page).read_text()))
    return [found["target"] for found in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """Names that headings have, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if not number else f"{slug}-{number}" for slug, count in found.items() for number in range(count + 1)}
