"""Everything that the SDK raises on purpose.

EscrowError
├── Refused               Escrow answered with an error: status, code, detail, field, retry_after_s
│   ├── InvalidRequest    400 and its kin: the request is wrong, and will be wrong again
│   ├── NotAllowed        401, 403: the token is missing, unknown, or not good for this
│   ├── NotFound          404, 410: there is no such thing, or no longer
│   ├── KeyTaken          409: the dedup_key was used for another body
│   ├── Overloaded        429: too much at once; retry_after_s says when to come back (TryLater)
│   └── Unavailable       5xx: Escrow cannot serve just now (TryLater)
├── TryLater              Escrow is away or busy, and nothing is wrong with the request: Overloaded, Unavailable and
│   └── Unreachable       no whole answer came; `maybe_done` says whether the request may have been carried out
├── BadAnswer             an answer came that the HTTP API does not know
├── Closed                the producer or consumer was closed, or belongs to the process before a fork
├── NotEnded              a transaction did not end as the caller said; `result` has the details
│   ├── EndConflict       it had ended the other way before
│   └── EndRefused        it cannot be ended (wrong group, discarded, gone, …)
└── BarrierError          the barrier of a local transaction
    ├── AlreadyAnswered   there is a row for this transaction: the local transaction must be rolled back
    ├── NotCommitted      COMMIT was said before the database transaction that recorded it was committed
    └── NotInTransaction  the connection commits every statement by itself, so a barrier row would prove nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from escrow.messages import TransactionResult


class EscrowError(Exception):
    """Root of all errors of the SDK."""


class Refused(EscrowError):
    """Escrow answered with an error. `code` is stable and for programs, `detail` is for people, `field` names what is wrong."""

    def __init__(
        self, status: int, code: str, detail: str, *, title: str = "", field: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{field}: {detail}" if field and field not in detail else detail or title)
        self.status, self.code, self.title, self.detail, self.field = status, code, title, detail, field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.args[0]}"


class TryLater(EscrowError):
    """Escrow is away or busy, and nothing is wrong with the request. The SDK has tried again before it raised this."""


class InvalidRequest(Refused):
    """The request is wrong, and would be wrong again: `field` and `detail` say where and what to do."""


class NotAllowed(Refused):
    """The token is missing or unknown (401), or not good for this group, topic or call (403)."""


class NotFound(Refused):
    """There is no such thing (404), or no longer (410)."""


class KeyTaken(Refused):
    """The same dedup_key was used for another body: use one key for one message."""


class Overloaded(Refused, TryLater):
    """Too much at once. The SDK has waited and tried again before it raised this."""


class Unavailable(Refused, TryLater):
    """Escrow cannot serve just now: it starts, stops, is a standby, or is broken."""


class Unreachable(TryLater):
    """No whole answer came. Where `maybe_done` is False, Escrow has certainly not carried the request out."""

    def __init__(self, detail: str, *, maybe_done: bool) -> None:
        super().__init__(detail)
        self.maybe_done = maybe_done


class BadAnswer(EscrowError):
    """An answer that the HTTP API does not know: is this URL an Escrow?"""


class Closed(EscrowError):
    """Used after close(), or in a child process that was forked from the one it was made in."""


class NotEnded(EscrowError):
    """The local transaction is over, and its half did not end as the caller said. `result` has the details."""

    def __init__(self, detail: str, result: TransactionResult) -> None:
        super().__init__(detail)
        self.result = result


class EndConflict(NotEnded):
    """The half had ended the other way before, by a check-back's answer or an operator: the two sides differ now."""


class EndRefused(NotEnded):
    """The half cannot be ended by this group, or not any more."""


class BarrierError(EscrowError):
    """Something about a barrier row."""


class AlreadyAnswered(BarrierError):
    """A row for this transaction exists: a check-back answered ROLLBACK while the local transaction was under way."""


class NotCommitted(BarrierError):
    """COMMIT was said while the database transaction with the barrier row was still open, and was not sent. Commit that
    transaction first, then say COMMIT."""


class NotInTransaction(BarrierError):
    """The connection is in autocommit mode: the row would be committed whatever becomes of the local transaction."""


_BY_STATUS: Final[dict[int, type[Refused]]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: KeyTaken,
    410: NotFound,
    429: Overloaded,
}


def refusal(
    status: int, code: str, detail: str, *, title: str = "", field: str = "", retry_after_s: float | None = None
) -> Refused:
    """The error of an HTTP status."""
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else InvalidRequest)
    return kind(status, code, detail, title=title, field=field, retry_after_s=retry_after_s)
