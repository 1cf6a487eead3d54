"""Local transactions that a barrier row was recorded in, until their outcome is said.

A COMMIT that is said before the database's own commit releases the message of a transaction that may still fail.
`Barrier.record` knows the connection. If that is still in the transaction when COMMIT is said, the producer says UNKNOWN instead
and raises `NotCommitted`.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from escrow.errors import NotCommitted

log: Final = logging.getLogger("escrow.producer")

#: Says whether the transaction is still open; for some drivers it must be awaited.
Probe = Callable[[], "bool | Awaitable[bool]"]

#: So many are remembered. Ids whose outcome is said elsewhere, or never, would stay for ever.
_REMEMBERED_MAX: Final = 10_000

_lock: Final = threading.Lock()
_probes: Final[OrderedDict[str, Probe]] = OrderedDict()


def remember(id: str, probe: Probe) -> None:
    """The half `id` has a row in a transaction that is open now."""
    with _lock:
        _probes[id] = probe
        if len(_probes) > _REMEMBERED_MAX:
            _probes.popitem(last=False)


def forget(id: str) -> Probe | None:
    """The outcome of this half is said; its probe, if there is one."""
    if id not in _probes:  # most have none, and need no lock
        return None
    with _lock:
        return _probes.pop(id, None)


def is_open(probe: Probe | None) -> bool:
    """Ask a probe, where nothing can be awaited."""
    if probe is None:
        return False
    found: Any = _asked(probe)
    if inspect.iscoroutine(found):
        found.close()
        return False
    return bool(found)


async def is_open_async(probe: Probe | None) -> bool:
    if probe is None:
        return False
    found: Any = _asked(probe)
    try:
        return bool(await found if inspect.isawaitable(found) else found)
    except Exception as error:
        return _unknown(error)


def _asked(probe: Probe) -> object:
    try:
        return probe()
    except Exception as error:
        return _unknown(error)


def _unknown(error: Exception) -> bool:
    """The connection is closed, or belongs to another thread: it does not tell, and the caller's word counts."""
    log.debug("the state of a recorded transaction is not known: %s", error)
    return False


def not_committed(id: str) -> NotCommitted:
    return NotCommitted(
        f"{id}: COMMIT was said, but the database transaction that recorded it is still open. Commit it first: inside the "
        "transaction block, or in the local transaction function. The half stays in doubt; check-back finds the outcome"
    )
