"""Arguments that are checked before anything is sent: a half whose transaction cannot run would only be asked about later.

Each refusal is a TypeError that begins with the argument's name and says what to pass instead.
"""

from __future__ import annotations

import inspect
from typing import Final

from escrow.messages import Message, Outcome, shortened

_SHOWN: Final = 80


def require_message(message: object) -> None:
    if isinstance(message, (list, tuple)) and message and all(isinstance(each, Message) for each in message):
        raise _wrong("message", message, "a transaction has one message; send_halves stores several, and each ends by itself")
    if not isinstance(message, Message):
        raise _wrong("message", message, "pass an escrow.Message")


def require_function(name: str, value: object, what: str, *, may_be_coroutine: bool) -> None:
    """Something that can be called; in a thread's producer no coroutine function: its result would not be awaited."""
    if not callable(value):
        raise _wrong(name, value, f"pass a function: {what}")
    # The flag, not inspect.iscoroutinefunction: that costs a microsecond for every transaction.
    code = getattr(value, "__code__", None)
    if not may_be_coroutine and code is not None and code.co_flags & inspect.CO_COROUTINE:
        raise _wrong(name, value, "a coroutine function needs an escrow.AsyncProducer")


def require_on_error(on_error: object) -> None:
    """UNKNOWN or ROLLBACK itself: a text that looks like one is none."""
    if not isinstance(on_error, Outcome):
        raise _wrong("on_error", on_error, "pass Outcome.UNKNOWN or Outcome.ROLLBACK")
    if on_error is Outcome.COMMIT:
        raise ValueError("on_error: COMMIT would release messages of failed transactions; pass UNKNOWN or ROLLBACK")


def _wrong(name: str, value: object, remedy: str) -> TypeError:
    shown = shortened(repr(value))
    return TypeError(f"{name}: is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}; {remedy}")
