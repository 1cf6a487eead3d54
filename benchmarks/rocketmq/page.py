"""docs/benchmarks.md and its pictures, made from benchmarks/results.json alone: `python -m benchmarks.rocketmq --page`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.rocketmq.plots import Bar, bars, shown
from benchmarks.rocketmq.results import GOALS, Rows, all_rows, fault_rows, reached
from benchmarks.rocketmq.systems import BROKER_HEAP, CLIENT_HEAP, NAMESRV_HEAP
from benchmarks.rocketmq.workloads import ASYNC, ESCROW, SYNC

DOCS: Final = Path(__file__).parents[2] / "docs"
HEAD: Final = """# Benchmarks

Escrow beside Apache RocketMQ {rocketmq} on the same machine ({machine}), the same work, in turns.
Made by `make bench-rocketmq` and `make bench-outbox` from [benchmarks/results.json](../benchmarks/results.json): do not edit.
What is behind the figures, and what was tried: [performance.md](performance.md). Parts measured against their own floor, at later
commits: [benchmarks/RESULTS.md](../benchmarks/RESULTS.md), which says why its figures for Escrow differ from these.

- Bodies are 1 KiB of text. Clients run on the same cores as the servers. While one system is measured the other rests
  (RocketMQ is stopped by SIGSTOP: it burns a core when idle).
- Escrow is `escrow run` with Spark and its default settings: an acknowledgement means that the disk has it. RocketMQ runs
  with its default settings, with synchronous flush (the same promise) and with asynchronous flush (a promise less).
- RocketMQ's broker: `{broker}`, name server: `{namesrv}`, client: `{client}`. (Its own scripts give the broker 8 GiB and the
  name server 4.)
- Each value is the median of the rounds, in brackets the smallest and the largest. Load of the machine when the workloads
  began: {loads}.
"""
SYSTEMS: Final = (ESCROW, SYNC, ASYNC, "outbox")


@dataclass(frozen=True, slots=True)
class Section:
    """One measurement on the page: its rows as a table and, with a picture's name, as bars."""

    letter: str
    title: str
    text: str
    #: (what, unit) of the tables.
    whats: tuple[tuple[str, str], ...]
    picture: str = ""


SECTIONS: Final = (
    Section(
        "a",
        "Transactions a second",
        """Each caller sends a half, runs an empty local transaction, says COMMIT, and begins again. Escrow:
        `Producer.send_in_transaction` in threads of one Python process, the same with asyncio ("tasks"), and four
        processes of 16 threads; halves and commits are acknowledged after a flush. RocketMQ: `TransactionMQProducer`
        in threads of one JVM. Its COMMIT is one-way; *until visible* counts until the last of them is in its topic.""",
        (
            ("tx_per_s", "transactions/s"),
            ("visible_tx_per_s", "transactions/s, until visible"),
            ("tx_p50_ms", "ms, p50 of one transaction"),
            ("tx_p99_ms", "ms, p99"),
        ),
        "throughput",
    ),
    Section(
        "b",
        "Batches",
        """Escrow takes halves and ends in batches (threads × messages in a request). RocketMQ has no batches of
        halves: beside it stand its 64 callers, measured in the same run.""",
        (("tx_per_s", "transactions/s"), ("settled_tx_per_s", "transactions/s, until settled by Spark")),
        "batches",
    ),
    Section(
        "c",
        "From COMMIT to a consumer",
        """200 transactions a second; from the local transaction's COMMIT until a waiting consumer has the message.
        *Settled*: until Spark has settled it, which no consumer waits for; beside it the time that a micro-batch of
        the same Spark takes which does nothing with its rows.""",
        (
            ("visible_p50_ms", "ms, p50"),
            ("visible_p99_ms", "ms, p99"),
            ("settled_p50_ms", "ms, settled, p50"),
            ("settled_p99_ms", "ms, settled, p99"),
            ("spark_floor_batch_ms", "ms, an empty micro-batch"),
        ),
        "visible",
    ),
    Section(
        "d",
        "Check storm",
        """Silent halves, older than their immunity when a member comes online that answers COMMIT to everything; both
        with their default interval of 30 s. From the first check until half, 99 % and all of them were asked, and
        until all are settled. RocketMQ with asynchronous flush, which is faster; its client answers with 8 threads,
        ours with the SDK's check loop and as many.""",
        (
            ("storm_settled_s", "s, all settled"),
            ("storm_asked_99_s", "s, 99 % asked"),
            ("storm_asked_50_s", "s, half asked"),
            ("storm_checks_per_half", "checks for each half"),
        ),
        "storm",
    ),
    Section(
        "e",
        "Bytes",
        """Growth of all files of the store for each committed transaction of 1 KiB, and for each check that is
        answered UNKNOWN. *Device*: pages that the processes made dirty, as the kernel counts them, with 64 callers.""",
        (
            ("bytes_per_tx", "bytes a transaction"),
            ("device_bytes_per_tx", "bytes a transaction, device"),
            ("bytes_per_check", "bytes a check"),
        ),
        "bytes",
    ),
    Section(
        "f",
        "Start after `kill -9`",
        """500,000 pending halves; from the start of the process until the first half is acknowledged, and until the
        first check arrives (RocketMQ's first round begins 30 s after its start).""",
        (("recover_first_ack_s", "s, first half acknowledged"), ("recover_first_check_s", "s, first check")),
        "recovery",
    ),
    Section(
        "g",
        "Memory",
        """All processes, with 1,000,000 pending halves. *Anonymous*: heaps and stacks, what processes share of them counted
        once. *Private*: pages that only one process maps, those of mapped files included, which the kernel can take back.""",
        (("memory_anonymous_mib", "MiB, anonymous"), ("memory_private_mib", "MiB, private")),
        "memory",
    ),
    Section(
        "h",
        "Processor",
        """CPU-seconds of the server's processes and of the client for 100,000 transactions of 64 callers; cores burnt
        with nothing to do.""",
        (
            ("server_cpu_s_per_100k", "CPU-s, servers"),
            ("client_cpu_s_per_100k", "CPU-s, client"),
            ("idle_cores", "cores, idle"),
        ),
        "cpu",
    ),
    Section(
        "outbox",
        "An outbox table instead",
        """What many teams use: a table in PostgreSQL, written in the same transaction as the business row, and a
        relay that polls it every 10 ms, hands the messages to a consumer and deletes them. The same (a), (c) and (e).""",
        (
            ("tx_per_s", "transactions/s"),
            ("visible_tx_per_s", "transactions/s, until visible"),
            ("visible_p50_ms", "ms, p50"),
            ("visible_p99_ms", "ms, p99"),
            ("bytes_per_tx", "bytes of its log a transaction"),
            ("device_bytes_per_tx", "bytes a transaction, device"),
        ),
        "outbox",
    ),
)


def page(results: Mapping[str, Any]) -> str:
    if not results["workloads"]:
        return "# Benchmarks\n\nNothing has been measured yet: `make bench-rocketmq`, `make bench-outbox`.\n"
    runs = results["workloads"]
    parts = [_head(results), _goals(results["figures"])]
    parts += [_section(section, runs[section.letter]) for section in SECTIONS if section.letter in runs]
    table = fault_rows(all_rows(results))
    if table:
        parts.append(_faults(table))
    return "\n".join(parts)


def pictures(results: Mapping[str, Any]) -> dict[str, str]:
    """File name: SVG."""
    found = {}
    for section in SECTIONS:
        if section.letter in results["workloads"]:
            what, unit = section.whats[0]
            groups = _groups(results["workloads"][section.letter]["rows"], what)
            if groups:
                found[f"benchmarks-{section.picture}.svg"] = bars(section.title, unit, groups)
    return found


def write(results: Mapping[str, Any], docs: Path = DOCS) -> None:
    (docs / "images").mkdir(exist_ok=True)
    (docs / "benchmarks.md").write_text(page(results))
    for name, svg in pictures(results).items():
        (docs / "images" / name).write_text(svg)


def _groups(rows: Sequence[Mapping[str, Any]], what: str) -> list[list[Bar]]:
    """The cases in the order in which they were measured; in each the systems that have it."""
    cases = list(dict.fromkeys(row["case"] for row in rows if row["what"] == what))
    return [[Bar(row["system"], f"{row['system']} {case}".strip(), row["values"])
             for row in rows if (row["what"], row["case"]) == (what, case)] for case in cases]  # fmt: skip


# --- parts of the page -----------------------------------------------------------------------------------------------------------
def _head(results: Mapping[str, Any]) -> str:
    measured = results["workloads"].values()
    loads = sorted(float(run["load_before"]) for run in measured)
    return HEAD.format(
        rocketmq=_one(measured, "rocketmq"),
        machine=_one(measured, "machine"),
        broker=" ".join(BROKER_HEAP),
        namesrv=" ".join(NAMESRV_HEAP),
        client=" ".join(CLIENT_HEAP),
        loads=f"{loads[0]:g} to {loads[-1]:g}",
    )


def _one(measured: Iterable[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(run[name]) for run in measured if name in run))


def _goals(figures: Mapping[str, float]) -> str:
    lines = [
        "## Goals",
        "",
        "Ratios ours / theirs of the same run; a speedup is theirs / ours.",
        "",
        "| figure | value | goal | |",
        "|---|---|---|---|",
    ]
    for name, (sign, bound) in GOALS.items():
        if name in figures:
            verdict = "reached" if reached(name, figures[name]) else "**not reached**: see the notes"
            lines.append(f"| `{name}` | {shown(figures[name])} | {sign} {shown(bound)} | {verdict} |")
    others = [f"`{name}` {shown(value)}" for name, value in figures.items() if name not in GOALS]
    return "\n".join([*lines, "", "Beside them: " + " · ".join(others) + ".", ""])


def _section(section: Section, run: Mapping[str, Any]) -> str:
    label = "" if section.letter == "outbox" else f"({section.letter}) "
    lines = [f"## {label}{section.title}", "", " ".join(section.text.split()), ""]
    if _groups(run["rows"], section.whats[0][0]):
        lines += [f"![{section.title}](images/benchmarks-{section.picture}.svg)", ""]
    for what, unit in section.whats:
        lines += _table(Rows(run["rows"]), what, unit)
    return "\n".join([*lines, _made(run), ""])


def _table(rows: Rows, what: str, unit: str) -> list[str]:
    systems = [system for system in SYSTEMS if rows.cases(what, system)]
    cases = list(dict.fromkeys(case for system in systems for case in rows.cases(what, system)))
    if not systems:
        return []
    lines = [f"| {unit} | {' | '.join(systems)} |", f"|---{'|---:' * len(systems)}|"]
    lines += [f"| {case} | {' | '.join(_cell(rows.values(what, system, case)) for system in systems)} |" for case in cases]
    return [*lines, ""]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = shown(statistics.median(values))
    return middle if len(values) == 1 else f"**{middle}** ({shown(min(values))} to {shown(max(values))})"


def _made(run: Mapping[str, Any]) -> str:
    scale = "" if run["scale"] == 1 else f", scale {run['scale']:g}: **not a measurement**"
    return f"{run['at']}, commit {run['commit']}, load {run['load_before']} → {run['load_after']}, {run['rounds']} rounds{scale}."


def _faults(table: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "## (i) Faults",
        "",
        "Seen in each round. RocketMQ flushes synchronously.",
        "",
        "| fault | expected | RocketMQ | Escrow |",
        "|---|---|---|---|",
    ]
    for row in table:
        cells = [_seen(row[name]) for name in ("rocketmq", "escrow")]
        lines.append(f"| {row['title']} | {row['expected']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _seen(side: Mapping[str, Any]) -> str:
    case = f" {side['case']}" if side["case"].startswith("of") else ""
    seen = ", ".join(f"{value:g}" for value in side["seen"]) + case
    return seen if side["right"] else f"**{seen}**"
