"""Every case of docs/cases.md, and the tests that play it through real Spark with time injected.

Numbers that the page leaves out (7, 8, 12 …) are not cases. Below Spark the same cases are played on the store alone
(tests/unit/streaming/settlement/test_cases.py) and as pure rules (tests/unit/checker).
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
#: As docs/cases.md lists them (tests/unit/test_docs.py holds the page to CASES).
NUMBERS = {*range(1, 7), *range(9, 12), 15, 16, *range(19, 24), *range(27, 51), *range(52, 60), *range(61, 69)}
SPARK_FIXTURES = {"world", "make_world", "core", "make_core"}

CASES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("a valid half is stored, invisible", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    2: ("TRAN_MSG goes the transactional way", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    3: ("a valid COMMIT is visible once", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    4: ("the same from a check", ("test_4_5_commit_from_a_check_is_the_same",)),
    5: ("UNKNOWN changes nothing", ("test_4_5_commit_from_a_check_is_the_same",)),
    6: ("ROLLBACK is never visible", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    9: ("immunity texts with a timeout of 6 s", ("test_9_38_41_42_immunity",)),
    10: ("check_count ≥ max: one discard, no check", ("test_10_30_47_unknown_for_ever",)),
    11: ("an old half without op: one check that round", ("test_11_55_one_check_a_round",)),
    15: ("an empty queue is no trouble", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    16: ("a check keeps the born time", ("test_16_43_born_time_is_kept_and_never_used",)),
    19: ("the pending count is exact", ("test_1_2_3_6_15_19_ends_of_four_halves",)),
    20: ("a live member is asked; none, no request", ("test_20_44_45_nobody_there_is_not_counted",)),
    21: ("a delivery failure leaves the caller unharmed", ("test_21_46_a_member_that_goes_away_while_it_is_asked",)),
    22: ("resume of an unreadable half is an error", ("test_22_30_61_operators_and_discarded_halves",)),
    23: ("120 messages of five kinds", ("test_23_a_hundred_and_twenty_messages",)),
    27: ("duplicate COMMIT: one delivery, already", ("test_27_28_29_repeated_and_contradictory_ends",)),
    28: ("COMMIT after ROLLBACK is refused", ("test_27_28_29_repeated_and_contradictory_ends",)),
    29: ("ROLLBACK after COMMIT is refused", ("test_27_28_29_repeated_and_contradictory_ends",)),
    30: (
        "COMMIT after discard is refused",
        ("test_10_30_47_unknown_for_ever", "test_22_30_61_operators_and_discarded_halves"),
    ),
    31: (
        "COMMIT while a check is outstanding ends the checks",
        ("test_31_32_an_end_stops_the_checks", "test_31_a_request_that_the_commit_overtook_is_not_handed_over"),
    ),
    32: ("check answer and COMMIT in one batch", ("test_31_32_an_end_stops_the_checks",)),
    33: (
        "contradictory ends in one batch: the first, on replay too",
        ("test_33_in_one_batch_the_first_in_the_log_wins", "test_33_63_64_66_a_rebuild_from_a_redo_log_of_many_files"),
    ),
    34: ("wrong group is refused", ("test_34_35_36_wrong_group_and_unknown_ids", "test_34_35_36_ids_that_are_not_the_callers")),
    35: ("unknown id is refused", ("test_34_35_36_wrong_group_and_unknown_ids", "test_34_35_36_ids_that_are_not_the_callers")),
    36: ("forged id is refused", ("test_34_35_36_wrong_group_and_unknown_ids", "test_34_35_36_ids_that_are_not_the_callers")),
    37: ("an END before its half is streamed is not lost", ("test_37_50_an_end_before_its_half_is_streamed",)),
    38: ("age = timeout is not checked, one unit more is", ("test_9_38_41_42_immunity",)),
    39: ("immunity 600 s costs no attempt", ("test_39_a_long_immunity_costs_no_attempt",)),
    40: ("COMMIT inside immunity", ("test_40_a_commit_inside_the_immunity",)),
    41: ("immunity below the timeout: one rule", ("test_9_38_41_42_immunity",)),
    42: ("immunity that is no number", ("test_9_38_41_42_immunity",)),
    43: ("the producer's clock has no effect", ("test_16_43_born_time_is_kept_and_never_used",)),
    44: ("nobody online: not counted", ("test_20_44_45_nobody_there_is_not_counted",)),
    45: ("a member returns: checked and resolved", ("test_20_44_45_nobody_there_is_not_counted",)),
    46: ("delivery fails: another member, counted once", ("test_21_46_a_member_that_goes_away_while_it_is_asked",)),
    47: ("UNKNOWN for ever: checkMax checks, one discard", ("test_10_30_47_unknown_for_ever",)),
    48: ("a discard that cannot be stored", ("test_48_a_discard_that_cannot_be_stored",)),
    49: ("older than retention: its own reason", ("test_49_expired_has_its_own_reason",)),
    50: ("an op far behind its half", ("test_37_50_an_end_before_its_half_is_streamed",)),
    52: ("a corrupt op is ignored and counted", ("test_52_56_corrupt_frames_are_set_aside",)),
    53: ("crash after release, before the mark", ("test_53_54_a_job_killed_around_the_release",)),
    54: ("crash before flush", ("test_53_54_a_job_killed_around_the_release",)),
    55: (
        "crash in a round: no check repeated",
        (
            "test_11_55_one_check_a_round",
            "test_55_a_restart_repeats_no_check",
            "test_55_a_crash_in_the_middle_of_a_round",
        ),
    ),
    56: ("one poison half: the rest progress", ("test_52_56_corrupt_frames_are_set_aside",)),
    57: ("one old pending head delays nobody", ("test_57_an_old_pending_head_delays_nobody",)),
    58: ("a million pending: no body rewritten", ("test_58_a_million_pending",)),
    59: ("a transaction with delay is refused", ("test_59_a_half_with_a_delay_is_refused",)),
    61: ("resume: count 0, gauge + 1", ("test_61_resume", "test_22_30_61_operators_and_discarded_halves")),
    62: ("a torn tail is cut", ("test_62_a_torn_tail_is_cut_while_the_job_runs_on",)),
    63: ("redo over ≥ 3 files: rebuilt exactly", ("test_33_63_64_66_a_rebuild_from_a_redo_log_of_many_files",)),
    64: ("after a rebuild the old id works", ("test_33_63_64_66_a_rebuild_from_a_redo_log_of_many_files",)),
    65: ('"Aa" and "BB" are never confused', ("test_65_groups_with_the_same_java_hash",)),
    66: ("the gauge identity after replay", ("test_33_63_64_66_a_rebuild_from_a_redo_log_of_many_files",)),
    67: (
        "a standby sends no checks and refuses END",
        ("test_67_a_standby_asks_nobody", "test_67_a_standby_refuses_ends_and_asks_nobody"),
    ),
    68: (
        "nothing returned: UNKNOWN, which settles nothing",
        ("test_68_unknown_with_a_remark_is_history_and_settles_nothing",),
    ),
}


def _tests() -> dict[str, set[str]]:
    """Name → arguments of every test function in this directory."""
    found = {}
    for path in HERE.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found[node.name] = {argument.arg for argument in node.args.args}
    return found


def test_the_table_has_every_case():
    assert set(CASES) == NUMBERS


def test_every_case_has_a_test_that_runs_through_spark():
    tests = _tests()
    for number, (what, names) in CASES.items():
        assert names, what
        for name in names:
            assert tests[name] & SPARK_FIXTURES, f"case {number} ({what}): {name} does not use Spark"
            assert number in _numbers(name), f"case {number} ({what}): {name} does not say so"


def test_every_test_that_names_a_case_is_in_the_table():
    for name, arguments in _tests().items():
        if arguments & SPARK_FIXTURES:
            for number in _numbers(name):
                assert name in CASES[number][1], f"{name} plays case {number}"


def _numbers(name: str) -> list[int]:
    """test_21_46_a_member… → 21, 46"""
    found = re.match(r"test((?:_\d+)+)_", name)
    return [int(number) for number in found[1].split("_")[1:]] if found else []
