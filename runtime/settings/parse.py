"""From what stands in the file, a variable or a flag to a value; `WrongValue` says why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from runtime.settings.key import Key
from runtime.settings.units import DURATION_MS, SIZE_BYTES

_AMOUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")


class WrongValue(ValueError):
    """A value that does not fit its key: the sentence without the place."""


def parse(key: Key, raw: object) -> Any:
    """The value of a key. `raw` has TOML's types if it comes from the file, and is text otherwise."""
    value = _PARSERS[key.kind](key, raw)
    if isinstance(value, int) and not isinstance(value, bool):
        _check_bounds(key, value, raw)
    return value


def warning_of(key: Key, raw: object, value: int) -> str:
    """A sentence about a value that is legal but probably not what was meant; "" if there is none."""
    bare = isinstance(raw, int) or str(raw).strip().replace("_", "").isdigit()
    if key.kind != "duration" or key.sub_second or not bare or not 0 < value < 1_000:
        return ""
    return (
        f"{_said(raw)} is {value} milliseconds (a bare integer has RocketMQ's unit) and counts as 1s: "
        f'write "{value}s" if seconds were meant, "{value}ms" if not'
    )


def _check_bounds(key: Key, value: int, raw: object) -> None:
    if key.least is not None and value < key.least:
        raise WrongValue(f"{_said(raw)} is less than {key.shown(key.least)}: {_remedy(key)}")
    if key.most is not None and value > key.most:
        raise WrongValue(f"{_said(raw)} is more than {key.shown(key.most)}: {_remedy(key)}")
    if value % key.multiple:
        raise WrongValue(f"{_said(raw)} is not a multiple of {key.multiple}: {_remedy(key)}")


def _remedy(key: Key) -> str:
    if key.remedy:
        return key.remedy
    if key.least is not None and key.most is not None:
        return f"set it between {key.shown(key.least)} and {key.shown(key.most)}"
    return f"set it to {key.shown(key.least)} or more" if key.least is not None else f"write {key.unit}"


def _said(raw: object) -> str:
    return repr(raw) if isinstance(raw, str) else str(raw).lower() if isinstance(raw, bool) else str(raw)


def _amount(key: Key, raw: object, units: Mapping[str, int], bare: int) -> int:
    """A number with a unit, in the smallest unit. A bare integer counts `bare` of the smallest unit."""
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise WrongValue(f"{_said(raw)} is not valid here: write {key.unit}")
    found = _AMOUNT.fullmatch(str(raw).strip().replace("_", ""))
    if found is None:
        raise WrongValue(f"{_said(raw)} cannot be read: write {key.unit}")
    number, unit = found.groups()
    if not unit and "." in number:
        raise WrongValue(f"{_said(raw)} has no unit: write {key.unit}")
    if unit and unit not in units:
        close = next((known for known in units if known.lower() == unit.lower()), "")
        hint = f"did you mean {number}{close}?" if close else f"units here are {', '.join(units)}"
        raise WrongValue(f"{_said(raw)} has the unknown unit {unit!r}: {hint}")
    value = Decimal(number) * (units[unit] if unit else bare)
    if value != value.to_integral_value():
        raise WrongValue(f"{_said(raw)} is finer than the smallest unit, {next(iter(units))}: round it")
    return int(value)


def _parse_duration(key: Key, raw: object) -> int:
    return _amount(key, raw, DURATION_MS, key.unit_ms)


def _parse_size(key: Key, raw: object) -> int:
    return _amount(key, raw, SIZE_BYTES, 1)


def _parse_count(key: Key, raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise WrongValue(f"{_said(raw)} is not a whole number: {_remedy(key)}")
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9_]+", raw.strip()) is None:
        raise WrongValue(f"{_said(raw)} is not a whole number: {_remedy(key)}")
    return int(raw)


def _parse_switch(_key: Key, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
        return raw.strip().lower() == "true"
    raise WrongValue(f"{_said(raw)} is neither true nor false: write true or false")


def _parse_choice(key: Key, raw: object) -> str:
    if isinstance(raw, str) and raw in key.choices:
        return raw
    remedy = key.remedy or "choose one of them"
    raise WrongValue(f"{_said(raw)} is not one of {', '.join(key.choices)}: {remedy}")


def _parse_text(_key: Key, raw: object) -> str:
    if not isinstance(raw, str):
        raise WrongValue(f"{_said(raw)} is not text: put it in quotes")
    return raw


def _parse_names(_key: Key, raw: object) -> tuple[str, ...]:
    """The file has a list. A variable or a flag has names separated by commas."""
    names = [name.strip() for name in raw.split(",") if name.strip()] if isinstance(raw, str) else raw
    if not isinstance(names, list) or not all(isinstance(name, str) and name.strip() for name in names):
        raise WrongValue(f'{_said(raw)} is not a list of names: write ["one", "two"]')
    return tuple(dict.fromkeys(names))


_PARSERS: Final = {
    "duration": _parse_duration,
    "size": _parse_size,
    "count": _parse_count,
    "switch": _parse_switch,
    "choice": _parse_choice,
    "text": _parse_text,
    "path": _parse_text,
    "names": _parse_names,
}
