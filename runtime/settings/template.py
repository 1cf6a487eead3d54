"""The settings file with every key and its default."""

from __future__ import annotations

from runtime.settings.key import Key
from runtime.settings.values import KEYS


def template() -> str:
    """conf/escrow.toml: every key with its default, its unit and its help text."""
    lines = [
        "# Escrow's settings with their defaults. A key that is left out has the same default.",
        "# The variable named beside each key overrides this file; the flag --set KEY=VALUE overrides both.",
        "# `escrow config show` prints the values in force and their origin; `escrow config check` checks.",
    ]
    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            lines += ["", f"# --- {section} ---"]
        lines += ["", f"# {key.doc}", f"# {_bounded(key)} · {key.variable}"]
        lines += [f"# {key.name} = …" if key.secret else f"{key.name} = {key.default}"]
    return "\n".join(lines) + "\n"


def _bounded(key: Key) -> str:
    if key.kind != "count" or key.most is None:
        return key.unit
    return f"{key.unit} from {key.least} to {key.most}"
