"""Every case of docs/cases.md, and the tests that play it through real Spark with time injected."""

from __future__ import annotations

import re

#: As docs/cases.md lists them (tests/unit/test_docs.py holds the page to CASES).
NUMBERS = {*range(1, 7), *range(9, 12), 15, 16, *range(19, 24), *range(27, 51), *range(52, 60), *range(61, 69)}
CASES: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("a valid half is stored, invisible", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    2: ("TRAN_MSG goes the transactional way", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    3: ("a valid COMMIT is visible once", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    4: ("the same from a check", ("test_commit_from_a_check_is_the_same_4_5",)),
    5: ("UNKNOWN changes nothing", ("test_commit_from_a_check_is_the_same_4_5",)),
    6: ("ROLLBACK is never visible", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    9: ("immunity texts with a timeout of 6 s", ("test_immunity_9_38_41_42",)),
    10: ("check_count ≥ max: one discard, no check", ("test_unknown_for_ever_10_30_47",)),
    11: ("an old half without op: one check that round", ("test_one_check_a_round_11_55",)),
    15: ("an empty queue is no trouble", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    16: ("a check keeps the born time", ("test_born_time_is_kept_and_never_used_16_43",)),
    19: ("the pending count is exact", ("test_ends_of_four_halves_1_2_3_6_15_19",)),
    20: ("a live member is asked; none, no request", ("test_nobody_there_is_not_counted_20_44_45",)),
    21: ("a delivery failure leaves the caller unharmed", ("test_a_member_that_goes_away_while_it_is_asked_21_46",)),
    22: ("resume of an unreadable half is an error", ("test_operators_and_discarded_halves_22_30_61",)),
    23: ("120 messages of five kinds", ("test_a_hundred_and_twenty_messages_23",)),
    27: ("duplicate COMMIT: one delivery, already", ("test_repeated_and_contradictory_ends_27_28_29",)),
    28: ("COMMIT after ROLLBACK is refused", ("test_repeated_and_contradictory_ends_27_28_29",)),
    29: ("ROLLBACK after COMMIT is refused", ("test_repeated_and_contradictory_ends_27_28_29",)),
    30: (
        "COMMIT after discard is refused",
        ("test_unknown_for_ever_10_30_47", "test_operators_and_discarded_halves_22_30_61"),
    ),
    31: (
        "COMMIT while a check is outstanding ends the checks",
        ("test_an_end_stops_the_checks_31_32", "test_a_request_that_the_commit_overtook_is_not_handed_over_31"),
    ),
    32: ("check answer and COMMIT in one batch", ("test_an_end_stops_the_checks_31_32",)),
    33: (
        "contradictory ends in one batch: the first, on replay too",
        ("test_in_one_batch_the_first_in_the_log_wins_33", "test_a_rebuild_from_a_redo_log_of_many_files_33_63_64_66"),
    ),
    34: ("wrong group is refused", ("test_wrong_group_and_unknown_ids_34_35_36", "test_ids_that_are_not_the_callers_34_35_36")),
    35: ("unknown id is refused", ("test_wrong_group_and_unknown_ids_34_35_36", "test_ids_that_are_not_the_callers_34_35_36")),
    36: ("forged id is refused", ("test_wrong_group_and_unknown_ids_34_35_36", "test_ids_that_are_not_the_callers_34_35_36")),
    37: ("an END before its half is streamed is not lost", ("test_an_end_before_its_half_is_streamed_37_50",)),
    38: ("age = timeout is not checked, one unit more is", ("test_immunity_9_38_41_42",)),
    39: ("immunity 600 s costs no attempt", ("test_a_long_immunity_costs_no_attempt_39",)),
    40: ("COMMIT inside immunity", ("test_a_commit_inside_the_immunity_40",)),
    41: ("immunity below the timeout: one rule", ("test_immunity_9_38_41_42",)),
    42: ("immunity that is no number", ("test_immunity_9_38_41_42",)),
    43: ("the producer's clock has no effect", ("test_born_time_is_kept_and_never_used_16_43",)),
    44: ("nobody online: not counted", ("test_nobody_there_is_not_counted_20_44_45",)),
    45: ("a member returns: checked and resolved", ("test_nobody_there_is_not_counted_20_44_45",)),
    46: ("delivery fails: another member, counted once", ("test_a_member_that_goes_away_while_it_is_asked_21_46",)),
    47: ("UNKNOWN for ever: checkMax checks, one discard", ("test_unknown_for_ever_10_30_47",)),
    48: ("a discard that cannot be stored", ("test_a_discard_that_cannot_be_stored_48",)),
    49: ("older than retention: its own reason", ("test_expired_has_its_own_reason_49",)),
    50: ("an op far behind its half", ("test_an_end_before_its_half_is_streamed_37_50",)),
    52: ("a corrupt op is ignored and counted", ("test_corrupt_frames_are_set_aside_52_56",)),
    53: ("crash after release, before the mark", ("test_a_job_killed_around_the_release_53_54",)),
    54: ("crash before flush", ("test_a_job_killed_around_the_release_53_54",)),
    55: (
        "crash in a round: no check repeated",
        (
            "test_one_check_a_round_11_55",
            "test_a_restart_repeats_no_check_55",
            "test_a_crash_in_the_middle_of_a_round_55",
        ),
    ),
    56: ("one poison half: the rest progress", ("test_corrupt_frames_are_set_aside_52_56",)),
    57: ("one old pending head delays nobody", ("test_an_old_pending_head_delays_nobody_57",)),
    58: ("a million pending: no body rewritten", ("test_a_million_pending_58",)),
    59: ("a transaction with delay is refused", ("test_a_half_with_a_delay_is_refused_59",)),
    61: ("resume: count 0, gauge + 1", ("test_resume_61", "test_operators_and_discarded_halves_22_30_61")),
    62: ("a torn tail is cut", ("test_a_torn_tail_is_cut_while_the_job_runs_on_62",)),
    63: ("redo over ≥ 3 files: rebuilt exactly", ("test_a_rebuild_from_a_redo_log_of_many_files_33_63_64_66",)),
    64: ("after a rebuild the old id works", ("test_a_rebuild_from_a_redo_log_of_many_files_33_63_64_66",)),
    65: ('"Aa" and "BB" are never confused', ("test_groups_with_the_same_java_hash_65",)),
    66: ("the gauge identity after replay", ("test_a_rebuild_from_a_redo_log_of_many_files_33_63_64_66",)),
    67: (
        "a standby sends no checks and refuses END",
        ("test_a_standby_asks_nobody_67", "test_a_standby_refuses_ends_and_asks_nobody_67"),
    ),
    68: (
        "nothing returned: UNKNOWN, which settles nothing",
        ("test_unknown_with_a_remark_is_history_and_settles_nothing_68",),
    ),
}


def numbers_of(name: str) -> list[int]:
    """The cases that a test says it plays: test_a_member_that_goes_away_21_46 → 21, 46."""
    found = re.search(r"((?:_\d+)+)$", name)
    return [int(number) for number in found[1].split("_")[1:]] if found else []
