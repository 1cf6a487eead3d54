"""Policy: the settings (docs/configuration.md) that decide when a half is checked or discarded, in whole seconds and plain counts.

The configuration has RocketMQ's milliseconds; `Policy.from_ms` rounds every time up, so that nothing is
checked or discarded sooner than configured. A message may ask for a longer grace of its own, its immunity:
`store.records.parse_immunity_s` reads what the producer wrote, `effective_immunity_s` says what it amounts to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from store.arrays import Array
from store.records import CHECK_COUNT_MAX

#: Times are compared with stored_at_s, 32 bits wide.
_TIME_MAX_S: Final = 0xFFFF_FFFF

_LIMITS: Final[dict[str, tuple[int, int, str]]] = {
    "transaction_timeout_s": (0, _TIME_MAX_S, "RocketMQ's default is 6"),
    "check_count_max": (1, CHECK_COUNT_MAX, "to send no checks, set checks_enabled to False"),
    "check_interval_s": (1, _TIME_MAX_S, "RocketMQ's default is 30"),
    "retention_s": (1, _TIME_MAX_S, "RocketMQ's default is 72 hours"),
    "check_at_least_interval_s": (0, _TIME_MAX_S, "0 leaves it unset"),
    "outstanding_per_group_max": (1, 0x7FFF_FFFF, "the default is 10000"),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of one decision round; immutable, checked when made. RocketMQ's name of each stands beside it."""

    transaction_timeout_s: int = 6  # transactionTimeOut: a half is checked once its age exceeds it
    check_count_max: int = 15  # transactionCheckMax: hand-overs before a half is discarded
    check_interval_s: int = 30  # transactionCheckInterval: length of one round
    retention_s: int = 72 * 3600  # fileReservedTime: a half older than this is discarded as expired
    checks_enabled: bool = True  # checkTransactionMessageEnable: False = no checks are sent; retention still holds
    standby: bool = False  # role: a standby decides nothing
    check_at_least_interval_s: int = 0  # checkTransactionMessageAtleastInterval (3.x): 0 = unset
    outstanding_per_group_max: int = 10_000  # requests of one round that a producer group may have unanswered

    def __post_init__(self) -> None:
        for field, (least, most, remedy) in _LIMITS.items():
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ValueError(f"{field} is {value!r}: set it to a whole number from {least} to {most} ({remedy})")
        for field in ("checks_enabled", "standby"):
            if not isinstance(getattr(self, field), bool):
                raise ValueError(f"{field} is {getattr(self, field)!r}: set it to True or False")
        if self.timeout_s >= self.retention_s:
            by_timeout = self.transaction_timeout_s == self.timeout_s
            field = "transaction_timeout_s" if by_timeout else "check_at_least_interval_s"
            raise ValueError(
                f"{field} ({self.timeout_s} s) reaches retention_s ({self.retention_s} s), so every half would be "
                f"discarded unasked: lower {field} or raise retention_s"
            )

    @property
    def timeout_s(self) -> int:
        """Age that a half must exceed before its first check: the stricter of the two settings."""
        return max(self.transaction_timeout_s, self.check_at_least_interval_s)

    @classmethod
    def from_ms(
        cls,
        *,
        transaction_timeout_ms: int = 6_000,
        check_interval_ms: int = 30_000,
        retention_ms: int = 72 * 3_600_000,
        check_at_least_interval_ms: int = 0,
        **counts_and_switches: Any,
    ) -> Policy:
        """A policy from RocketMQ's milliseconds, every time rounded up; the other fields are passed on as they are."""
        return cls(
            transaction_timeout_s=seconds_up(transaction_timeout_ms),
            check_interval_s=seconds_up(check_interval_ms),
            retention_s=seconds_up(retention_ms),
            check_at_least_interval_s=seconds_up(check_at_least_interval_ms),
            **counts_and_switches,
        )


def seconds_up(duration_ms: int) -> int:
    """Milliseconds as whole seconds, rounded up: 6,001 ms is a timeout of 7 s, never of 6 s."""
    return -(-duration_ms // 1000)


def effective_immunity_s(immunity_s: int, policy: Policy) -> int:
    """Age that a half must exceed before it is checked: its own grace or the timeout, capped at retention."""
    return min(max(immunity_s, policy.timeout_s), policy.retention_s)


def effective_immunities_s(immunities_s: Array, policy: Policy) -> Array:
    """`effective_immunity_s` of many at once."""
    effective: Array = np.minimum(np.maximum(immunities_s, policy.timeout_s), policy.retention_s)
    return effective
