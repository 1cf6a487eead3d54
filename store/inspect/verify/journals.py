"""Verify, journals: every record of one, whole and valid."""

from __future__ import annotations

from pathlib import Path

from store.inspect.verify.files import Findings
from store.io import journal


def check_journal(path: Path, findings: Findings, clean: bool) -> list[tuple[int, bytes]]:
    """(offset, payload) of every record of a journal. Bytes behind them are a problem, unless they may be a torn append."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records: list[tuple[int, bytes]] = []
    at = 0
    for end, payload in journal.decode(content):
        records.append((at, payload))
        at = end
    if at < len(content) and (clean or _valid_behind(content, at + 1)):
        findings.add(path, at, "not a whole valid record")
    return records


def _valid_behind(content: bytes, at: int) -> bool:
    return any(
        next(journal.decode(content, start), None) is not None
        for start in range(at, min(len(content), at + 65_536))
        if content[start]
    )
