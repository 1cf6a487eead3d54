"""Distributions with plug-ins, installed as pip would: modules, and metadata beside them."""

from __future__ import annotations

import importlib
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGINS_PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"


def installer(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """put(name, entry points, module=text, …): there, and named by ESCROW_PLUGINS, until the test ends."""
    named: list[str] = []

    def put(name: str, entry_points: str, **modules: str) -> None:
        info = site / f"{name.replace('-', '_')}-1.2.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for module, text in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(text))
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        named.append(name)
        monkeypatch.setenv("ESCROW_PLUGINS", ",".join(named))

    return put


def example(module: str) -> str:
    """The worked example of docs/plugins.md whose first line names the module."""
    (found,) = re.findall(rf"```python\n# {module}\.py\n(.*?)```", PLUGINS_PAGE.read_text(), re.DOTALL)
    return str(found)
