"""The Python examples of README.md, so that tests can run them word for word."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def example(containing: str, language: str = "python") -> str:
    """The one block of README.md in this language that contains this text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    [found] = [block for block in blocks if containing in block]
    return found
