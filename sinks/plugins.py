"""Plug-ins: found through Python entry points, loaded once, checked, and refused with a sentence that names what is broken.

    group                          what it names                                    used by
    escrow.sinks                   a callable (root: Path) → interfaces.Sink        the streaming job; all of them
    escrow.check_transports        a callable (root: Path) → CheckTransport         the edge; all of them
    escrow.check_listeners         a callable () → CheckListener                    the edge; all of them
    escrow.transaction_service     a callable (root: Path, inner) → TransactionService   the edge; at most one

`docs/plugins.md` has a worked example.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from typing import Any, Final

from sinks.errors import BrokenPlugin
from sinks.interfaces import CheckListener, CheckTransport, Sink, TransactionService

GROUPS: Final[dict[str, type]] = {
    "escrow.sinks": Sink,
    "escrow.check_transports": CheckTransport,
    "escrow.check_listeners": CheckListener,
    "escrow.transaction_service": TransactionService,
}


def load_all(group: str, *arguments: Any) -> list[tuple[str, Any]]:
    """(name, plug-in) of every plug-in of a group, made with these arguments, in order of name."""
    found = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    for earlier, later in pairwise(found):
        if earlier.name == later.name and earlier.value != later.value:
            raise BrokenPlugin(f"{_where(later)}: {_where(earlier)} has the same name: uninstall one of them")
    return [(point.name, _load(point, arguments)) for point in found]


def load_one(group: str, *arguments: Any) -> Any | None:
    """The only plug-in of a group; None where nobody has installed one."""
    found = load_all(group, *arguments)
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise BrokenPlugin(f"{group}: there can be one, but {names} are installed: uninstall all but one")
    return found[0][1] if found else None


def installed(group: str) -> bool:
    """Has anybody installed a plug-in of this group?"""
    return bool(entry_points(group=group))


def _load(point: EntryPoint, arguments: tuple[Any, ...]) -> Any:
    try:
        factory = point.load()
    except Exception as error:  # whatever its module does when imported
        raise BrokenPlugin(f"{_where(point)}: cannot be imported: {_cause(error)}") from error
    if not callable(factory):
        raise BrokenPlugin(f"{_where(point)}: names a {type(factory).__name__}, not something that can be called")
    try:
        made = factory(*arguments)
    except Exception as error:  # whatever its constructor does
        raise BrokenPlugin(f"{_where(point)}: could not be made: {_cause(error)}") from error
    _check(point, made)
    return made


def _check(point: EntryPoint, made: Any) -> None:
    wanted = GROUPS[point.group]
    missing = [name for name in _methods(wanted) if not callable(getattr(made, name, None))]
    if missing:
        raise BrokenPlugin(
            f"{_where(point)}: is no {wanted.__name__}: it has no {' and no '.join(f'{name}()' for name in missing)}"
        )


def _methods(protocol: type) -> list[str]:
    return sorted(name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_"))


def _where(point: EntryPoint) -> str:
    by = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"plug-in {point.name} = {point.value} ({point.group}){by}"


def _cause(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
