"""Everything that ingest raises on purpose. `code` is what goes over the wire; the text says what to do.

EdgeError
├── CannotStart            the edge could not start; the text says why, in one line
├── KeysUnusable           the keys that seal ids cannot be read or used
├── BadId                  an id that this store did not issue: malformed, foreign, forged
├── InvalidRequest         a request that breaks a rule; the text names the field
├── UnknownMethod          no such operation
├── Standby                role = standby: halves, messages and ends are refused
├── TransactionsRejected   rejectTransactionMessage = true: halves are refused
├── TokensUnusable         the file of tokens cannot be read or used
├── TlsUnusable            a certificate or a key cannot be read or used
├── Unauthorized           no token, or none that is known here
├── Forbidden              the token is known, and lacks the role that this needs
├── GroupsUnusable         the file about producer groups cannot be read or used
├── QuotaExceeded          the group has used up a quota; `retry_after_s` says when to try again
├── Overloaded             more waits for a flush than may: try again later
├── Closing                the edge is stopping: try again later
└── EdgeFailed             the store failed; the edge must be started again
"""

from __future__ import annotations


class EdgeError(Exception):
    """Root of all errors of the edge."""

    code = "error"


class CannotStart(EdgeError):
    """The edge could not start."""

    code = "cannot_start"


class KeysUnusable(EdgeError):
    """The keys that seal transaction ids cannot be used."""

    code = "keys"


class BadId(EdgeError):
    """An id that this store did not issue."""

    code = "bad_id"


class InvalidRequest(EdgeError):
    """A request that breaks a rule."""

    code = "invalid"


class UnknownMethod(EdgeError):
    """No such operation."""

    code = "unknown_method"


class Standby(EdgeError):
    """A standby takes nothing."""

    code = "standby"


class TransactionsRejected(EdgeError):
    """Halves are refused by configuration."""

    code = "rejected"


class TokensUnusable(EdgeError):
    """The file of tokens cannot be used."""

    code = "tokens"


class TlsUnusable(EdgeError):
    """A certificate, a key or an authority cannot be used."""

    code = "tls"


class Unauthorized(EdgeError):
    """Nobody whom the edge knows."""

    code = "unauthorized"
    status = 401


class Forbidden(EdgeError):
    """Somebody known, who may not do this."""

    code = "forbidden"
    status = 403


class GroupsUnusable(EdgeError):
    """The file about producer groups cannot be used."""

    code = "groups"


class QuotaExceeded(EdgeError):
    """A group has used up a quota. Never raised for an end."""

    code = "quota"
    status = 429

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Overloaded(EdgeError):
    """Too much waits for a flush."""

    code = "overloaded"


class Closing(EdgeError):
    """The edge is stopping."""

    code = "closing"


class EdgeFailed(EdgeError):
    """The store failed under the edge."""

    code = "store_failed"
