"""The results of an action: printed, counted, and turned into an exit code."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Final

from escrow.cli import exits
from escrow.cli.render import cell, json_line

#: Above this number, results are only counted, by reason.
SHOWN_ONE_BY_ONE: Final = 20


class Outcome:
    """The results of an action, over all its requests."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._matched = 0
        self._audit: list[int] = []

    def add(self, answer: dict[str, Any]) -> None:
        self._counts.update(answer["counts"])
        self._matched += int(answer["matched"])
        if answer.get("audit_no") is not None:
            self._audit.append(answer["audit_no"])
        for reason in answer.get("reasons", ()):
            self._reasons[reason["result"], reason["detail"]] += int(reason["count"])
        for result in answer["results"]:
            if self._args.json:
                print(json_line(result))
            elif self._matched <= SHOWN_ONE_BY_ONE:
                told = f": {cell(result['detail'])}" if result["detail"] else ""
                word = f"would be {result['result']}" if answer["dry_run"] else result["result"]
                print(f"{result['id']}  {word}{told}")

    def tell(self, *, dry: bool = False) -> int:
        """The counts, and the exit code that they mean."""
        dry = dry or self._args.dry_run
        counts = {name: self._counts[name] for name in ("accepted", "queued", "already", "conflict", "refused")}
        if self._args.json:
            print(
                json_line(
                    {"action": self._args.action, "dry_run": dry, "matched": self._matched, "counts": counts, "audit": self._audit}
                )
            )
        elif dry:
            print(f"dry run: {self._args.action} would be tried on {self._matched:,}; nothing was done")
            self._tell_reasons("would be ")
        else:
            words = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count) or "nothing to do"
            note = f" (audit {', '.join(str(number) for number in self._audit[:5])})" if self._audit else ""
            print(f"{self._args.action}: {words}{note}")
            self._tell_reasons("")
        return self._code(counts, dry=dry)

    def _tell_reasons(self, would: str) -> None:
        """What happened to how many, and why: where results are many, or not all alike."""
        if self._matched > SHOWN_ONE_BY_ONE or len(self._reasons) > 1:
            for (result, detail), count in self._reasons.most_common():
                print(f"  {count:,} {would}{result}{f': {cell(detail)}' if detail else ''}")

    @staticmethod
    def _code(counts: dict[str, int], *, dry: bool) -> int:
        return exits.PROBLEMS if not dry and (counts["conflict"] or counts["refused"]) else exits.OK
