"""From rows to figures: ratios of the same run, goals, fault rows; and benchmarks/results.json, of which a run may renew a part.

Where a figure's name does not say otherwise, RocketMQ flushes synchronously, as Escrow always does. A ratio is the median of the
rounds' ratios, ours / theirs, unless it is called a speedup.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rocketmq.workloads import ASYNC, BATCHES, CALLERS, ESCROW, PROCESSES, SYNC, Row

RESULTS: Final = Path(__file__).parents[1] / "results.json"

#: name: (at least / at most, bound)
GOALS: Final[dict[str, tuple[str, float]]] = {
    "rocketmq.tx_rate_64_sync": ("≥", 1.0),
    "rocketmq.tx_rate_batched": ("≥", 5.0),
    "rocketmq.visible_p50": ("≤", 2.0),
    "rocketmq.check_storm_speedup_100k": ("≥", 10.0),
    "rocketmq.bytes_per_tx": ("≤", 0.5),
    "rocketmq.bytes_per_check": ("≤", 0.05),
    "rocketmq.recover_time": ("≤", 0.5),
    "rocketmq.memory_1m_pending": ("≤", 0.5),
    "rocketmq.idle_cpu": ("≤", 0.2),
    "rocketmq.cpu_per_tx": ("≤", 2.0),
    "rocketmq.our_duplicates": ("≤", 0.0),
}


class Rows:
    """Looking rows up. What was not measured is an empty list, and a figure of it is left out."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._by = {(row["what"], row["system"], row["case"]): row["values"] for row in rows}

    def cases(self, what: str, system: str) -> list[str]:
        return [case for found, of, case in self._by if (found, of) == (what, system)]

    def values(self, what: str, system: str, case: object = None) -> list[float]:
        """Without a case: the only one there is."""
        if case is None:
            case = next(iter(self.cases(what, system)), "")
        return self._by.get((what, system, str(case)), [])

    def median(self, what: str, system: str, case: object = None) -> float | None:
        values = self.values(what, system, case)
        return statistics.median(values) if values else None

    def ratio(self, what: str, ours: object = None, theirs: object = None, system: str = SYNC) -> float | None:
        """Ours / theirs, round by round."""
        pairs = list(zip(self.values(what, ESCROW, ours), self.values(what, system, theirs), strict=False))
        if not pairs or any(their == 0 for _, their in pairs):
            return None
        return statistics.median(our / their for our, their in pairs)


def figures(rows: Iterable[Row]) -> dict[str, float]:
    """Every figure that the rows allow."""
    found = Rows(rows)
    named: dict[str, float] = {}
    for part in (_rates, _batched, _latency, _storms, _bytes, _resources, _duplicates):
        named |= _named("rocketmq", part(found))
    return named


def _rates(rows: Rows) -> dict[str, float | None]:
    named = {f"tx_rate_{callers}_sync": rows.ratio("tx_per_s", callers, callers) for callers in CALLERS}
    named |= {f"tx_rate_{callers}_async": rows.ratio("tx_per_s", callers, callers, ASYNC) for callers in CALLERS}
    named |= {f"tx_rate_{callers}_sync_tasks": rows.ratio("tx_per_s", f"{callers} tasks", callers) for callers in CALLERS}
    return named | {
        "tx_rate_64_sync_visible": rows.ratio("visible_tx_per_s", 64, 64),
        "tx_rate_64_sync_processes": rows.ratio("tx_per_s", f"{PROCESSES} × 16", 64),
        "tx_p99_64_sync": rows.ratio("tx_p99_ms", 64, 64),
    }


def _batched(rows: Rows) -> dict[str, float | None]:
    """Our best form against its best, of either flush mode; and against its best with the same guarantee."""
    ours = [rate for threads, size in BATCHES if (rate := rows.median("tx_per_s", ESCROW, f"{threads} × {size}"))]
    sync, best = rows.median("tx_per_s", SYNC, 64), rows.median("tx_per_s", ASYNC, 64)
    if not ours or not sync or not best:
        return {}
    return {"tx_rate_batched": max(ours) / max(sync, best), "tx_rate_batched_sync": max(ours) / sync}


def _latency(rows: Rows) -> dict[str, float | None]:
    settled, theirs = rows.median("settled_p50_ms", ESCROW), rows.median("visible_p50_ms", SYNC)
    floor = rows.median("spark_floor_batch_ms", ESCROW)
    return {
        "visible_p50": rows.ratio("visible_p50_ms"),
        "visible_p99": rows.ratio("visible_p99_ms"),
        "visible_p50_async": rows.ratio("visible_p50_ms", system=ASYNC),
        "settled_p50": settled / theirs if settled and theirs else None,
        "settled_p50_over_spark_floor": settled / floor if settled and floor else None,
    }


def _storms(rows: Rows) -> dict[str, float | None]:
    named: dict[str, float | None] = {}
    for count, name in ((100_000, "100k"), (300_000, "300k")):
        for what, figure in (("storm_settled_s", "check_storm_speedup"), ("storm_asked_99_s", "check_storm_99_speedup")):
            ratio = rows.ratio(what, count, count, ASYNC)
            named[f"{figure}_{name}"] = 1 / ratio if ratio else None
    return named


def _bytes(rows: Rows) -> dict[str, float | None]:
    return {name: rows.ratio(name) for name in ("bytes_per_tx", "device_bytes_per_tx", "bytes_per_check")}


def _resources(rows: Rows) -> dict[str, float | None]:
    after = "after transactions"
    return {
        "recover_time": rows.ratio("recover_first_ack_s"),
        "recover_first_check": rows.ratio("recover_first_check_s"),
        "memory_1m_pending": rows.ratio("memory_anonymous_mib"),
        "memory_1m_pending_with_mapped": rows.ratio("memory_private_mib"),
        "idle_cpu": rows.ratio("idle_cores", after, after),
        "cpu_per_tx": rows.ratio("server_cpu_s_per_100k"),
        "client_cpu_per_tx": rows.ratio("client_cpu_s_per_100k"),
    }


def _duplicates(rows: Rows) -> dict[str, float | None]:
    def total(system: str) -> float | None:
        values = rows.values("fault_twice_in_topic", system) + rows.values("fault_delivered_again", system)
        return float(sum(values)) if values else None

    return {"our_duplicates": total(ESCROW), "their_duplicates": total(SYNC)}


def reached(name: str, value: float) -> bool:
    """Whether a figure with a goal reaches it."""
    sign, bound = GOALS[name]
    return value >= bound if sign == "≥" else value <= bound


# --- faults ----------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fault:
    """What was done, what a user may expect, and which rows say what was seen."""

    title: str
    expected: str
    what: str
    right: Callable[[float, str], bool]


FAULTS: Final = (
    Fault("`kill -9` after acknowledged commits that a consumer has seen: lost", "0", "fault_lost", lambda seen, _: seen == 0),
    Fault("… in their topic twice", "0", "fault_twice_in_topic", lambda seen, _: seen == 0),
    Fault("… the same one given to the same consumer again", "0", "fault_delivered_again", lambda seen, _: seen == 0),
    Fault("COMMIT sent three times: copies", "1", "fault_commit_thrice", lambda seen, _: seen == 1),
    Fault("COMMIT after ROLLBACK: copies", "0", "fault_commit_after_rollback", lambda seen, _: seen == 0),
    Fault("nobody online for more rounds than checkMax, then a producer that would commit: asked", "all", "fault_nobody_asked",
          lambda seen, case: seen == int(case.split()[1])),
    Fault("… delivered", "all", "fault_nobody_delivered", lambda seen, case: seen == int(case.split()[1])),
)  # fmt: skip


def fault_rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """One for each fault that was played: seen values of both, and whether every one was right."""
    found, table = Rows(rows), []
    for fault in FAULTS:
        line: dict[str, Any] = {"title": fault.title, "expected": fault.expected}
        for name, system in (("rocketmq", SYNC), ("escrow", ESCROW)):
            case = next(iter(found.cases(fault.what, system)), "")
            values = found.values(fault.what, system, case)
            line[name] = {"case": case, "seen": values, "right": bool(values) and all(fault.right(value, case) for value in values)}
        if line["rocketmq"]["seen"] and line["escrow"]["seen"]:
            table.append(line)
    return table


# --- the file --------------------------------------------------------------------------------------------------------------------
def read(path: Path = RESULTS) -> dict[str, Any]:
    """{"workloads": {letter: {"rows", "rounds", "scale", …}}, "figures": …}"""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"workloads": {}, "figures": {}}
    return found


def all_rows(results: Mapping[str, Any]) -> list[Row]:
    """Workload by workload, without the outbox; (b) measures RocketMQ's 64 callers again: those of (a) count for (a)."""
    rows: dict[tuple[str, str, str], Row] = {}
    for letter in sorted(set(results["workloads"]) - {"outbox"}):
        for row in results["workloads"][letter]["rows"]:
            rows.setdefault((row["what"], row["system"], row["case"]), row)
    return list(rows.values())


def merge(path: Path, letter: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Put one workload's results into the file, in place of the earlier ones; figures are made anew."""
    results = read(path)
    results["workloads"][letter] = measured
    results["workloads"] = dict(sorted(results["workloads"].items()))
    results["figures"] = figures_of(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return results


def figures_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Figures of all workloads. Batches, and the outbox, are held against what was measured beside them."""
    workloads = results["workloads"]
    found = figures(all_rows(results))
    if "b" in workloads:
        found |= _named("rocketmq", _batched(Rows(workloads["b"]["rows"])))
    if "outbox" in workloads:
        written = Rows(workloads.get("e", {"rows": []})["rows"]).median("bytes_per_tx", ESCROW)
        found |= _named("outbox", _outbox(Rows(workloads["outbox"]["rows"]), written))
    return found


def _outbox(rows: Rows, our_bytes: float | None) -> dict[str, float | None]:
    theirs = rows.median("bytes_per_tx", "outbox")
    named = {f"tx_rate_{callers}": rows.ratio("tx_per_s", callers, callers, "outbox") for callers in CALLERS}
    return named | {
        "tx_rate_64_visible": rows.ratio("visible_tx_per_s", 64, 64, "outbox"),
        "visible_p50": rows.ratio("visible_p50_ms", system="outbox"),
        "visible_p99": rows.ratio("visible_p99_ms", system="outbox"),
        "bytes_per_tx": our_bytes / theirs if our_bytes and theirs else None,
    }


def _named(prefix: str, values: Mapping[str, float | None]) -> dict[str, float]:
    return {f"{prefix}.{name}": value for name, value in values.items() if value is not None}
