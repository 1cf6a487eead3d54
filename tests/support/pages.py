"""Runs the Python blocks of a page of docs/, in order and in one namespace, and holds them to what their comments promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
#: `print(…)  # what it prints`, or `# what it prints: and why`
PROMISE = re.compile(r"^ *print\(.*\)  # (.*?)(?:: .*)?$", re.MULTILINE)


def run_page(page: str, port: int, capsys: Any) -> None:
    """Against the Escrow at this port."""
    names: dict[str, Any] = {}
    try:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1):
            exec(compile(block.replace("7480", str(port)), f"{page}, block {number}", "exec"), names)
            printed = capsys.readouterr().out.splitlines()
            for promised in PROMISE.findall(block):
                assert promised in printed, f"{page}, block {number}: {printed}"
    finally:
        for name in ("producer", "db"):
            if name in names:
                names[name].close()
