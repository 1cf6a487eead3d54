"""Writes docs/configuration.md from runtime/settings/schema: `make pages`. A test compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from runtime.settings import KEYS, Key

PAGE: Final = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD: Final = """# Configuration

Every setting, generated from [runtime/settings/schema](../runtime/settings/schema) by `make pages`.
[conf/escrow.toml](../conf/escrow.toml) has the same keys as a file. Every key has a default; none is required.

A value comes from the first of these that sets it: a flag (`--set transactionTimeOut=10s`), a variable
(`ESCROW_TRANSACTION_TIME_OUT=10s`), the file (`--config FILE`, else `ESCROW_CONFIG`, else `conf/escrow.toml`), the default.
If a setting is wrong, Escrow does not start and prints one line for each fault, with its place.

```sh
escrow config show          # every key, its value and its origin
escrow config check         # check only
escrow config show --set transactionTimeOut=10s
```

Times are written with a unit: `500ms`, `6s`, `10m`, `72h`, `30d`. A bare integer has RocketMQ's unit: milliseconds, and hours for
`fileReservedTime`. Sizes: `64KiB`, `16MiB`, `1GiB`; a bare integer is in bytes. Names are RocketMQ's where it has one, so that
its operators know them; two of them carry RocketMQ's own spelling (`…MapedFileSize`).
"""


def text_of_page() -> str:
    lines = [HEAD]
    section = ""
    for key in KEYS.values():
        if key.section != section:
            section = key.section
            title, _, rest = section.rstrip(".").partition(". ")
            lines += [f"## {title}", ""]
            lines += [f"{rest}.", ""] if rest else []
            lines += ["| key | default | variable | |", "|---|---|---|---|"]
        lines.append(f"| `{key.name}` | {_default(key)} | `{key.variable}` | {_meaning(key)} |")
        if _is_last(key):
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _is_last(key: Key) -> bool:
    keys = list(KEYS.values())
    at = keys.index(key)
    return at + 1 == len(keys) or keys[at + 1].section != key.section


def _default(key: Key) -> str:
    value = key.default.strip('"')
    return f"`{value}`" if value and not key.secret else ""


def _meaning(key: Key) -> str:
    """What it does, and what may be written where that is not plain from the default."""
    text = key.doc.replace("|", "\\|")
    if key.kind == "choice":
        return f"{text} One of {', '.join(f'`{choice}`' for choice in key.choices)}."
    if key.kind == "count" and key.most is not None:
        return f"{text} {key.least} to {key.most}."
    return text


if __name__ == "__main__":
    PAGE.write_text(text_of_page())
