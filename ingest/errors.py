"""Everything that ingest raises on purpose. `code` and `status` are what goes over the wire; the text says what to do.

EdgeError
├── CannotStart            the edge could not start; the text says why, in one line
├── KeysUnusable           the keys that seal ids cannot be read or used
├── BadId                  an id that this store did not issue: malformed, foreign, forged
├── InvalidRequest         a request that breaks a rule; the text begins with the field
│   ├── TooLarge           more bytes or items than are taken
│   └── UnsupportedMedia   neither JSON nor msgpack
├── MatchedMore            a filter finds more than an operator has seen
├── NotFound               no such path
├── NoSuchTopic            autoCreateTopics = false, and no operator has made this topic
├── TooManyNames           a token has made as many topics or groups as it may, or the rest is for operators
├── MethodNotAllowed       the path is there, the method is not
├── Standby                role = standby: halves, messages and ends are refused
├── TransactionsRejected   rejectTransactionMessage = true: halves are refused
├── TokensUnusable         the file of tokens cannot be read or used
├── TlsUnusable            a certificate or a key cannot be read or used
├── Unauthorized           no token, or none that is known here
├── Forbidden              the token is known, and lacks the role that this needs
├── GroupsUnusable         the file about producer groups cannot be read or used
├── QuotaExceeded          the group has used up a quota; `retry_after_s` says when to try again
├── RefusedByService       the transaction service that is plugged in says no
├── ServiceFailed          the transaction service that is plugged in failed
├── Overloaded             more waits for a flush, or is being received, than may: try again later
├── Closing                the edge is stopping: try again later
├── EdgeFailed             the store failed; the edge must be started again
├── KafkaUnreachable       Kafka mode: Kafka does not answer; try again later
├── KafkaRefused           Kafka mode: Kafka says no to this message
└── NotInKafkaMode         Kafka mode: only the embedded store has this
"""

from __future__ import annotations


class EdgeError(Exception):
    """Root of all errors of the edge."""

    code = "error"
    status = 500
    #: 429 and 503: when to try again.
    retry_after_s = 0.0
    #: What of the request is wrong; "" where it is no single field.
    field = ""


class CannotStart(EdgeError):
    """The edge could not start."""

    code = "cannot_start"


class KeysUnusable(EdgeError):
    """The keys that seal transaction ids cannot be used."""

    code = "keys"


class BadId(EdgeError):
    """An id that this store did not issue."""

    code, status, field = "unknown_id", 404, "id"


class InvalidRequest(EdgeError):
    """A request that breaks a rule. Without `field`, it is what stands before the first colon of the text."""

    code, status = "invalid", 400

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = text.partition(":")[0] if field is None else field


class TooLarge(InvalidRequest):
    """More than is taken."""

    code, status = "too_large", 413


class UnsupportedMedia(InvalidRequest):
    """A body in a form that is not understood."""

    code, status = "unsupported_media", 415


class MatchedMore(EdgeError):
    """A filter finds more than the operator's dry run showed."""

    code, status, field = "matched_more", 409, "expect"


class NotFound(EdgeError):
    """No such path."""

    code, status = "not_found", 404


class NoSuchTopic(EdgeError):
    """The topic does not exist, and only operators create topics."""

    code, status, field = "no_such_topic", 404, "topic"


class TooManyNames(EdgeError):
    """A name more than may be made. Names that are there stay usable."""

    code, status = "too_many_names", 403

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field


class MethodNotAllowed(EdgeError):
    """The path knows other methods."""

    code, status = "method_not_allowed", 405

    def __init__(self, text: str, allowed: tuple[str, ...]) -> None:
        super().__init__(text)
        self.allowed = allowed


class Standby(EdgeError):
    """A standby takes nothing."""

    code, status, retry_after_s = "standby", 503, 5.0


class TransactionsRejected(EdgeError):
    """Halves are refused by configuration."""

    code, status = "rejected", 403


class TokensUnusable(EdgeError):
    """The file of tokens cannot be used."""

    code = "tokens"


class TlsUnusable(EdgeError):
    """A certificate, a key or an authority cannot be used."""

    code = "tls"


class Unauthorized(EdgeError):
    """The caller is not known."""

    code, status, field = "unauthorized", 401, "Authorization"


class Forbidden(EdgeError):
    """The caller is known and lacks the permission."""

    code, status = "forbidden", 403


class GroupsUnusable(EdgeError):
    """The file about producer groups cannot be used."""

    code = "groups"


class QuotaExceeded(EdgeError):
    """A group has used up a quota. Never raised for an end."""

    code, status = "quota", 429

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class RefusedByService(EdgeError):
    """A plug-in says no; the text is its own."""

    code, status = "refused_by_service", 403


class ServiceFailed(EdgeError):
    """A plug-in failed."""

    code, status = "service_failed", 500


class Overloaded(EdgeError):
    """Too much at once."""

    code, status, retry_after_s = "overloaded", 429, 1.0


class Closing(EdgeError):
    """The edge is stopping."""

    code, status, retry_after_s = "closing", 503, 1.0


class EdgeFailed(EdgeError):
    """The store failed under the edge."""

    code, status, retry_after_s = "store_failed", 503, 2.0


class KafkaUnreachable(EdgeError):
    """Kafka does not answer, or does not take what it is given. Nothing was promised; whatever it was may be said again."""

    code, status, retry_after_s = "kafka_unreachable", 503, 2.0


class NotReady(EdgeError):
    """The endpoint is open, and cannot answer all that it may be asked."""

    code, status, retry_after_s = "not_ready", 503, 5.0


class OpsMissing(EdgeError):
    """Kafka mode: ops about a half may be gone from Kafka, so its outcome is unknown."""

    code, status, retry_after_s = "ops_missing", 503, 60.0


class KafkaRefused(EdgeError):
    """Kafka answered, and said no."""

    code, status = "kafka_refused", 403


class NotInKafkaMode(EdgeError):
    """Something that only the embedded store has."""

    code, status = "kafka_mode", 501
