"""Escrow's public face: ``import escrow`` is the producer and consumer SDK. It needs nothing but Python.

    Producer, Consumer             for threads
    AsyncProducer, AsyncConsumer   for asyncio
    Message, Outcome, …            what goes in and comes out
    Barrier                        tells check-backs whether a local transaction committed
    Api                            the HTTP API, one method a call

docs/producers.md and docs/consumers.md teach them. The SDK imports none of the rooms (``store``, ``checker``, ``sinks``,
``streaming``, ``ingest``): those come with ``escrow-mq-server``. The command line is ``escrow.cli``.
"""

from importlib.metadata import PackageNotFoundError, version

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

try:
    __version__ = version("escrow-mq")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
