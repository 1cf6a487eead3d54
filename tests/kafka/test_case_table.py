"""Every case of docs/cases.md, and what plays it in Kafka mode: tests against the real broker, or why it has none.

The rules themselves are those of embedded mode (checker/, streaming/settlement/settle.py), where every case is played through
Spark with time
injected: tests/integration/test_case_table.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tests.support.cases import CASES as EMBEDDED
from tests.support.cases import numbers_of

HERE = Path(__file__).parent
CASES: dict[int, tuple[str, ...]] = {
    1: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    2: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    3: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    4: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    15: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    23: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    57: ("test_of_a_hundred_and_twenty_halves_exactly_the_commits_arrive_1_2_3_4_15_23_57",),
    **dict.fromkeys(
        (5, 6, 27, 28, 29, 32, 33, 34, 35, 52), ("test_the_first_end_in_the_op_partition_wins_5_6_27_28_29_32_33_34_35_52",)
    ),
    **dict.fromkeys(
        (11, 16, 20, 31, 44, 45),
        ("test_a_due_half_is_asked_about_once_a_round_if_somebody_can_be_asked_11_16_20_31_44_45",),
    ),
    **dict.fromkeys(
        (10, 30, 47, 61), ("test_unknown_for_ever_is_asked_checkmax_times_and_discarded_once_and_can_be_resumed_10_30_47_61",)
    ),
    **dict.fromkeys(
        (9, 39, 40, 41, 42, 43, 65),
        ("test_immunity_is_a_number_of_seconds_or_the_default_and_costs_no_attempt_9_39_40_41_42_43_65",),
    ),
    46: ("test_a_request_that_one_member_did_not_finish_goes_to_another_and_counts_once_46",),
    **dict.fromkeys((22, 37, 50, 56), ("test_poison_and_ops_that_come_early_or_late_hinder_nobody_22_37_50_56",)),
    48: ("test_a_discard_that_cannot_be_stored_waits_on_the_list_too_48",),
    **dict.fromkeys(
        (19, 49, 63, 64, 66),
        ("test_the_pending_count_is_exact_also_when_the_store_is_lost_and_old_places_still_end_19_49_63_64_66",),
    ),
    53: (
        "test_a_batch_whose_answer_was_lost_is_not_written_again_53",
        "test_kills_of_driver_worker_broker_and_endpoint_under_load_53_54_55",
    ),
    54: ("test_kills_of_driver_worker_broker_and_endpoint_under_load_53_54_55",),
    55: ("test_kills_of_driver_worker_broker_and_endpoint_under_load_53_54_55",),
    58: ("test_a_round_over_a_million_pending_writes_no_half_again_and_is_bounded_58",),
    67: (
        "test_a_standby_takes_over_and_the_frozen_master_can_write_nothing_when_it_wakes_67",
        "test_a_driver_that_was_superseded_can_write_nothing_67",
    ),
}
#: Cases that Kafka mode cannot have, or that are played elsewhere.
NOT_HERE: dict[int, str] = {
    21: "a request is handed to Kafka, not to a member: it does not fail because of one",
    36: "ids are the endpoint's: tests/kafka/test_endpoint.py, test_an_id_that_was_never_given_is_refused",
    38: "the broker says when a half was stored: to the second the rule is tests/unit/checker's",
    59: "a delay is a property of HTTP and gRPC requests",
    62: "the logs are Kafka's; of the state tables nothing is trusted after a crash but what the redo topic says",
    68: "the SDK's",
}


def _tests() -> set[str]:
    """Every test function in this directory."""
    return {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_case_is_here_or_says_why_not() -> None:
    assert {*CASES, *NOT_HERE} == set(EMBEDDED)
    assert not CASES.keys() & NOT_HERE.keys()


def test_every_case_has_a_test_that_says_so() -> None:
    tests = _tests()
    for number, names in CASES.items():
        for name in names:
            assert name in tests
            assert number in numbers_of(name)


def test_every_test_that_names_a_case_is_in_the_table() -> None:
    for name in _tests():
        for number in numbers_of(name):
            assert name in CASES.get(number, ()), f"{name} plays case {number}"
