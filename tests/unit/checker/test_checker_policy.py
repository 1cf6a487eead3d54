"""Policy: defaults, refusals, rounding, immunity (docs/configuration.md; cases 9, 41 and 42 of docs/cases.md)."""

from __future__ import annotations

import numpy as np
import pytest

from checker.policy import Policy, effective_immunities_s, effective_immunity_s, seconds_up
from store.records import IMMUNITY_MAX_S, parse_immunity_s


def test_defaults_are_rocketmqs():
    policy = Policy()
    assert (policy.transaction_timeout_s, policy.check_count_max, policy.check_interval_s) == (6, 15, 30)
    assert (policy.retention_s, policy.checks_enabled, policy.standby) == (72 * 3600, True, False)
    assert (policy.check_at_least_interval_s, policy.outstanding_per_group_max) == (0, 10_000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("transaction_timeout_s", -1),
        ("transaction_timeout_s", 6.5),
        ("transaction_timeout_s", True),
        ("check_count_max", 0),
        ("check_count_max", 256),
        ("check_interval_s", 0),
        ("retention_s", 0),
        ("retention_s", 1 << 32),
        ("check_at_least_interval_s", -1),
        ("outstanding_per_group_max", 0),
        ("checks_enabled", 1),
        ("standby", "no"),
    ],
)
def test_a_refusal_names_the_field_the_value_and_the_remedy(field, value):
    with pytest.raises(ValueError, match=f"^{field} is .*: set it to ") as refused:
        Policy(**{field: value})
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("field", ["transaction_timeout_s", "check_at_least_interval_s"])
def test_a_timeout_that_reaches_retention_is_refused(field):
    assert Policy.from_ms(retention_ms=60_000, **{field[:-1] + "ms": 59_000}).timeout_s == 59
    with pytest.raises(ValueError, match=f"^{field} .*lower {field} or raise retention_s$"):
        Policy.from_ms(retention_ms=60_000, **{field[:-1] + "ms": 60_000})


def test_limits_themselves_are_accepted():
    assert Policy(check_count_max=255).check_count_max == 255
    assert Policy(check_count_max=1, transaction_timeout_s=0, check_interval_s=1).timeout_s == 0


def test_milliseconds_round_up_never_down():
    assert [seconds_up(ms) for ms in (0, 1, 999, 1000, 1001, 6000, 6001)] == [0, 1, 1, 1, 2, 6, 7]
    policy = Policy.from_ms(
        transaction_timeout_ms=6_001,
        check_interval_ms=500,
        retention_ms=3_600_001,
        check_at_least_interval_ms=60_000,
        check_count_max=3,
        standby=True,
    )
    assert policy == Policy(7, 3, 1, 3601, True, True, 60)
    assert Policy.from_ms() == Policy()


def test_the_stricter_of_both_timeouts_holds():
    assert Policy(check_at_least_interval_s=60).timeout_s == 60
    assert Policy(transaction_timeout_s=70, check_at_least_interval_s=60).timeout_s == 70


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [("1", 6), ("5", 6), (None, 6), ("-1", 6), ("100.5", 6), ("7", 7), ("100", 100)],
)
def test_case_09_immunity_with_a_timeout_of_6_s(text, expected_s):
    assert effective_immunity_s(parse_immunity_s(text), Policy()) == expected_s


def test_case_41_immunity_below_the_timeout_is_the_timeout():
    policy = Policy(transaction_timeout_s=10)
    assert [effective_immunity_s(s, policy) for s in (0, 1, 9, 10, 11)] == [10, 10, 10, 10, 11]


@pytest.mark.parametrize(
    "text", [None, "", "abc", "-5", "-0", "100.5", " 7", "7 ", "7\n", "1_0", "٧", "７", "+", "-", "0x10", "1e3", "+-7"]
)
def test_case_42_what_is_no_number_counts_as_not_given(text):
    assert parse_immunity_s(text) == 0


@pytest.mark.parametrize(
    ("text", "stored_s"),
    [
        ("+7", 7),
        ("007", 7),
        ("0", 0),
        (str(IMMUNITY_MAX_S), IMMUNITY_MAX_S),
        (str(IMMUNITY_MAX_S + 1), IMMUNITY_MAX_S),
        (str(2**63), IMMUNITY_MAX_S),
        ("9" * 10_000, IMMUNITY_MAX_S),
        ("0" * 10_000 + "8", 8),
        ("-" + "9" * 10_000, 0),
    ],
)
def test_case_42_numbers_are_taken_and_capped(text, stored_s):
    assert parse_immunity_s(text) == stored_s


def test_case_42_huge_immunity_is_capped_at_retention():
    assert effective_immunity_s(IMMUNITY_MAX_S, Policy(retention_s=100)) == 100


def test_immunities_of_many_equal_those_of_one():
    policy = Policy(transaction_timeout_s=6, retention_s=100)
    many = np.array([0, 5, 6, 7, 99, 100, 101, IMMUNITY_MAX_S], np.uint32)
    assert effective_immunities_s(many, policy).tolist() == [effective_immunity_s(int(s), policy) for s in many]
    assert effective_immunities_s(many, policy).tolist() == [6, 6, 6, 7, 99, 100, 100, 100]
