"""Escrow's public face: ``import escrow`` is the producer and consumer SDK. It needs nothing but Python.

    Producer, Consumer             for threads
    AsyncProducer, AsyncConsumer   for asyncio
    Message, Outcome, …            what goes in and comes out
    Barrier                        tells check-backs whether a local transaction committed
    Api                            the HTTP API, one method a call

A name is imported from its module when it is first used: a program with threads loads no asyncio, and `import escrow` costs
little. docs/producers.md and docs/consumers.md teach them. The SDK imports none of the rooms (``store``, ``checker``, ``sinks``,
``streaming``, ``ingest``): those come with ``escrow-mq-server``. The command line is ``escrow.cli``.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # what type checkers see; at run time `__getattr__` does it
    from escrow._background import EndCounts
    from escrow._deliveries import Delivery, Pending
    from escrow._transport import tls_context
    from escrow.aio import AsyncConsumer, AsyncProducer, AsyncTransaction
    from escrow.api import Api
    from escrow.barrier import Barrier
    from escrow.consumer import Consumer
    from escrow.errors import (
        AlreadyAnswered,
        BadAnswer,
        BarrierError,
        Closed,
        EndConflict,
        EndRefused,
        EscrowError,
        InvalidRequest,
        KeyTaken,
        NotAllowed,
        NotCommitted,
        NotEnded,
        NotFound,
        NotInTransaction,
        Overloaded,
        Refused,
        TryLater,
        Unavailable,
        Unreachable,
    )
    from escrow.messages import (
        Check,
        DeadLetter,
        Delivered,
        End,
        EndAnswer,
        Half,
        Message,
        Outcome,
        Position,
        TransactionResult,
        Verdict,
    )
    from escrow.producer import Producer, Transaction

    __version__: str

__all__ = [
    "AlreadyAnswered",
    "Api",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncTransaction",
    "BadAnswer",
    "Barrier",
    "BarrierError",
    "Check",
    "Closed",
    "Consumer",
    "DeadLetter",
    "Delivered",
    "Delivery",
    "End",
    "EndAnswer",
    "EndConflict",
    "EndCounts",
    "EndRefused",
    "EscrowError",
    "Half",
    "InvalidRequest",
    "KeyTaken",
    "Message",
    "NotAllowed",
    "NotCommitted",
    "NotEnded",
    "NotFound",
    "NotInTransaction",
    "Outcome",
    "Overloaded",
    "Pending",
    "Position",
    "Producer",
    "Refused",
    "Transaction",
    "TransactionResult",
    "TryLater",
    "Unavailable",
    "Unreachable",
    "Verdict",
    "__version__",
    "tls_context",
]

#: Where each name is at home.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "escrow._background": ("EndCounts",),
    "escrow._deliveries": ("Delivery", "Pending"),
    "escrow._transport": ("tls_context",),
    "escrow.aio": ("AsyncConsumer", "AsyncProducer", "AsyncTransaction"),
    "escrow.api": ("Api",),
    "escrow.barrier": ("Barrier",),
    "escrow.consumer": ("Consumer",),
    "escrow.errors": (
        "AlreadyAnswered",
        "BadAnswer",
        "BarrierError",
        "Closed",
        "EndConflict",
        "EndRefused",
        "EscrowError",
        "InvalidRequest",
        "KeyTaken",
        "NotAllowed",
        "NotCommitted",
        "NotEnded",
        "NotFound",
        "NotInTransaction",
        "Overloaded",
        "Refused",
        "TryLater",
        "Unavailable",
        "Unreachable",
    ),
    "escrow.messages": (
        "Check",
        "DeadLetter",
        "Delivered",
        "End",
        "EndAnswer",
        "Half",
        "Message",
        "Outcome",
        "Position",
        "TransactionResult",
        "Verdict",
    ),
    "escrow.producer": ("Producer", "Transaction"),
}
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names}
#: Public modules, which are there as attributes without an import of their own.
_MODULES: Final = ("aio", "api", "barrier", "consumer", "errors", "messages", "producer")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found = _version()
    elif name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        return importlib.import_module(f"escrow.{name}")
    else:
        raise AttributeError(f"module 'escrow' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def _version() -> str:
    metadata: Any = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version("escrow-mq"))
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
