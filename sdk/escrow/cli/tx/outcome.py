"""The results of an action: printed, counted, and turned into an exit code."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Final

from escrow.cli import exits
from escrow.cli.render import cell, json_line

#: Above this number, accepted results are only counted.
SHOWN_ONE_BY_ONE: Final = 20


class Outcome:
    """The results of an action, over all its requests."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._counts: Counter[str] = Counter()
        self._matched = 0
        self._audit: list[int] = []

    def add(self, answer: dict[str, Any]) -> None:
        self._counts.update(answer["counts"])
        self._matched += int(answer["matched"])
        if answer.get("audit_no") is not None:
            self._audit.append(answer["audit_no"])
        for result in answer["results"]:
            if self._args.json:
                print(json_line(result))
            elif result["result"] != "accepted" or self._matched <= SHOWN_ONE_BY_ONE:
                told = f": {cell(result['detail'])}" if result["detail"] else ""
                word = f"would be {result['result']}" if answer["dry_run"] else result["result"]
                print(f"{result['id']}  {word}{told}")

    def tell(self, *, dry: bool = False) -> int:
        """The counts, and the exit code that they mean."""
        dry = dry or self._args.dry_run
        counts = {name: self._counts[name] for name in ("accepted", "already", "conflict", "refused")}
        if self._args.json:
            print(
                json_line(
                    {"action": self._args.action, "dry_run": dry, "matched": self._matched, "counts": counts, "audit": self._audit}
                )
            )
        elif dry:
            print(f"dry run: {self._args.action} would be tried on {self._matched:,}; nothing was done")
        else:
            words = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
            note = f" (audit {', '.join(str(number) for number in self._audit[:5])})" if self._audit else ""
            print(f"{self._args.action}: {words}{note}")
        return exits.PROBLEMS if not dry and (counts["conflict"] or counts["refused"]) else exits.OK
