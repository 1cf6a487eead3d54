"""The comparison's report: figures from rows, results that are renewed in part, the page that is made of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.rocketmq import page, results
from benchmarks.rocketmq.client import quantiles
from benchmarks.rocketmq.processes import Talker, extent_bytes, memory, written_bytes
from benchmarks.rocketmq.workloads import ASYNC, ESCROW, SYNC, Bench, Row


def row(what: str, system: str, case: object, *values: float) -> Row:
    return {"what": what, "system": system, "case": str(case), "values": list(values)}


def run_of(*rows: Row, **more: object) -> dict[str, object]:
    return {"at": "2026-11-16 12:00", "commit": "abc1234", "machine": "2 cores", "rocketmq": "5.5.0", "scale": 1.0, "rounds": 3,
            "load_before": 0.2, "load_after": 1.5, "rows": list(rows), **more}  # fmt: skip


FAULTS = [
    row("fault_twice_in_topic", SYNC, 20_000, 387, 12), row("fault_twice_in_topic", ESCROW, 20_000, 0, 0),
    row("fault_delivered_again", SYNC, 20_000, 0, 3), row("fault_delivered_again", ESCROW, 20_000, 0, 0),
    row("fault_commit_thrice", SYNC, "copies", 3, 3), row("fault_commit_thrice", ESCROW, "copies", 1, 1),
    row("fault_nobody_asked", SYNC, "of 200", 0), row("fault_nobody_asked", ESCROW, "of 200", 200),
]  # fmt: skip


# --- figures -------------------------------------------------------------------------------------------------------------------
def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_the_medians():
    rows = [row("tx_per_s", ESCROW, 64, 100, 400, 900), row("tx_per_s", SYNC, 64, 100, 100, 1000)]
    assert results.figures(rows)["rocketmq.tx_rate_64_sync"] == 1.0  # of 1.0, 4.0 and 0.9


def test_batches_are_held_against_the_best_of_rocketmq_measured_beside_them():
    beside = [row("tx_per_s", SYNC, 64, 5000), row("tx_per_s", ASYNC, 64, 10_000), row("tx_per_s", ESCROW, "4 × 256", 60_000)]
    elsewhere = [row("tx_per_s", SYNC, 64, 1), row("tx_per_s", ASYNC, 64, 2), row("tx_per_s", ESCROW, 64, 3)]
    figures = results.figures_of({"workloads": {"a": run_of(*elsewhere), "b": run_of(*beside)}})
    assert figures["rocketmq.tx_rate_batched"] == 6.0
    assert figures["rocketmq.tx_rate_batched_sync"] == 12.0
    assert figures["rocketmq.tx_rate_64_sync"] == 3.0


def test_a_storm_is_told_as_a_speedup_and_against_the_faster_flush():
    rows = [
        row("storm_settled_s", ASYNC, 100_000, 40),
        row("storm_settled_s", SYNC, 100_000, 80),
        row("storm_settled_s", ESCROW, 100_000, 4),
    ]
    assert results.figures(rows)["rocketmq.check_storm_speedup_100k"] == pytest.approx(10)


def test_our_duplicates_are_summed_over_all_rounds_and_both_ways_to_come_twice():
    figures = results.figures(FAULTS)
    assert figures["rocketmq.our_duplicates"] == 0
    assert figures["rocketmq.their_duplicates"] == 402


def test_what_was_not_measured_has_no_figure():
    assert results.figures([row("tx_per_s", ESCROW, 64, 100)]) == {}


def test_the_outbox_is_held_against_escrow_of_its_own_run():
    measured = run_of(row("tx_per_s", ESCROW, 64, 300), row("tx_per_s", "outbox", 64, 100), row("bytes_per_tx", "outbox", "", 2000))
    elsewhere = run_of(row("tx_per_s", ESCROW, 64, 7), row("bytes_per_tx", ESCROW, "", 1000))
    figures = results.figures_of({"workloads": {"e": elsewhere, "outbox": measured}})
    assert figures["outbox.tx_rate_64"] == 3.0
    assert figures["outbox.bytes_per_tx"] == 0.5


def test_every_goal_of_the_issue_has_a_name_that_the_rows_give():
    whats = ["tx_per_s", "visible_p50_ms", "bytes_per_tx", "bytes_per_check", "recover_first_ack_s", "memory_anonymous_mib",
             "server_cpu_s_per_100k", "fault_twice_in_topic"]  # fmt: skip
    rows = [row(what, system, 64, 2.0) for what in whats for system in (ESCROW, SYNC, ASYNC)]
    rows += [row("storm_settled_s", system, 100_000, 2.0) for system in (ESCROW, ASYNC)]
    rows += [row("idle_cores", system, "after transactions", 2.0) for system in (ESCROW, SYNC)]
    rows += [row("tx_per_s", ESCROW, "4 × 256", 2.0)]
    assert set(results.GOALS) <= set(results.figures(rows))


def test_goals_are_bounds_from_below_or_from_above():
    assert results.reached("rocketmq.tx_rate_64_sync", 1.0)
    assert not results.reached("rocketmq.tx_rate_64_sync", 0.99)
    assert results.reached("rocketmq.bytes_per_tx", 0.5)
    assert not results.reached("rocketmq.our_duplicates", 1)


# --- faults --------------------------------------------------------------------------------------------------------------------
def test_a_fault_row_is_right_only_if_every_round_was():
    by = {line["title"]: line for line in results.fault_rows(FAULTS)}
    twice = by["… in their topic twice"]
    assert (twice["rocketmq"]["right"], twice["escrow"]["right"]) == (False, True)
    again = by["… the same one given to the same consumer again"]
    assert not again["rocketmq"]["right"]  # 0 in one round, 3 in the other
    assert by["COMMIT sent three times: copies"]["escrow"]["right"]
    nobody = by["nobody online for more rounds than checkMax, then a producer that would commit: asked"]
    assert (nobody["rocketmq"]["right"], nobody["escrow"]["right"]) == (False, True)


def test_a_fault_that_was_played_on_one_side_only_is_no_row():
    assert results.fault_rows([row("fault_lost", ESCROW, 20_000, 0)]) == []


# --- the file ------------------------------------------------------------------------------------------------------------------
def test_a_workload_measured_again_replaces_its_own_results_and_no_others(tmp_path: Path):
    path = tmp_path / "results.json"
    results.merge(path, "a", run_of(row("tx_per_s", ESCROW, 64, 100), row("tx_per_s", SYNC, 64, 100)))
    results.merge(path, "e", run_of(row("bytes_per_tx", ESCROW, "", 1000), row("bytes_per_tx", SYNC, "", 2000)))
    results.merge(path, "a", run_of(row("tx_per_s", ESCROW, 64, 300), row("tx_per_s", SYNC, 64, 100)))
    found = json.loads(path.read_text())
    assert found["figures"] == {"rocketmq.tx_rate_64_sync": 3.0, "rocketmq.bytes_per_tx": 0.5}
    assert list(found["workloads"]) == ["a", "e"]


# --- the page ------------------------------------------------------------------------------------------------------------------
def sample() -> dict[str, object]:
    rows = [row("tx_per_s", ESCROW, 64, 3000, 4000, 5000), row("tx_per_s", SYNC, 64, 5000, 5000, 5000)]
    workloads = {"a": run_of(*rows), "i": run_of(*FAULTS)}
    return {"workloads": workloads, "figures": results.figures_of({"workloads": workloads})}


def test_the_page_says_which_goals_were_not_reached_and_shows_the_spread():
    text = page.page(sample())
    assert "| `rocketmq.tx_rate_64_sync` | 0.8 | ≥ 1 | **not reached**" in text
    assert "**4,000** (3,000 to 5,000)" in text
    assert "| `rocketmq.our_duplicates` | 0 | ≤ 0 | reached |" in text


def test_the_page_marks_what_was_seen_and_is_wrong():
    text = page.page(sample())
    assert "| … in their topic twice | 0 | **387, 12** | 0, 0 |" in text


def test_a_scaled_run_is_not_passed_off_as_a_measurement():
    found = sample()
    found["workloads"]["a"]["scale"] = 0.02  # type: ignore[index]
    assert "scale 0.02: **not a measurement**" in page.page(found)


def test_pictures_are_whole_svg_with_a_bar_for_each_value():
    [(name, svg)] = page.pictures(sample()).items()
    assert name == "benchmarks-throughput.svg"
    tree = ElementTree.fromstring(svg)
    assert len(tree.findall(".//{http://www.w3.org/2000/svg}line")) == 2
    assert "4,000" in "".join(tree.itertext())


def test_the_committed_page_is_made_of_the_committed_results():
    found = results.read()
    assert found["figures"] == results.figures_of(found)
    assert (page.DOCS / "benchmarks.md").read_text() == page.page(found)
    for name, svg in page.pictures(found).items():
        assert (page.DOCS / "images" / name).read_text() == svg


# --- measuring -----------------------------------------------------------------------------------------------------------------
def test_bytes_of_a_file_made_in_full_size_count_up_to_the_last_that_was_written(tmp_path: Path):
    with open(tmp_path / "segment", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 8 << 20)
        file.write(b"x" * 5000)
        file.seek(3 << 20)
        file.write(b"y" * 10 + b"\0" * 90)
    (tmp_path / "dedup").mkdir()
    (tmp_path / "dedup" / "table").write_bytes(b"z" * 999)
    (tmp_path / "empty").touch()
    assert extent_bytes(tmp_path, without=("dedup",)) == (3 << 20) + 10
    assert extent_bytes(tmp_path) == (3 << 20) + 10 + 999


def test_a_process_that_has_gone_uses_nothing():
    assert memory([2**22 + 1]).anonymous_mib == 0
    assert written_bytes([2**22 + 1]) == 0
    assert memory([os.getpid()]).anonymous_mib > 1
    assert memory([os.getpid()]).private_mib > 1


def test_a_client_program_that_ends_is_told_with_what_it_said_last(tmp_path: Path):
    script = "import sys; print('{\"ready\": true}', flush=True); sys.stdin.readline(); sys.exit('no such broker')"
    with Talker([sys.executable, "-c", script], tmp_path / "said") as talker, pytest.raises(RuntimeError, match="no such broker"):
        talker.ask("tx", callers=1)


def test_rows_of_the_same_case_are_rounds_of_it(tmp_path: Path):
    bench = Bench(tmp_path, "", scale=0.02)
    for value in (1.0, 2.0):
        bench.add("tx_per_s", ESCROW, 64, value)
    bench.add("tx_per_s", ESCROW, 8, 5.0)
    assert [made["values"] for made in bench.rows] == [[1.0, 2.0], [5.0]]
    assert (bench.count(100_000), bench.count(1000), bench.seconds(5)) == (2000, 100, 1.0)


def test_quantiles_of_nothing_are_none():
    assert quantiles([]) == {}
    assert quantiles([0.001, 0.002, 0.003]) == {"p50_ms": 2.0, "p99_ms": 3.0}
