"""Status codes: RocketMQ's clients read what went wrong from the answer's body, not from gRPC's own status.

docs/rocketmq-clients.md lists the codes. A client makes an exception of the code, and shows the text: it tells what to do next.
"""

from __future__ import annotations

import logging
from typing import Final

from ingest import errors
from ingest.capabilities import EndAnswer
from ingest.rocketmq import messaging_pb2 as pb
from store.errors import (
    BatchTooLarge,
    BodyTooLarge,
    DelayedHalf,
    DuplicateKey,
    IllegalName,
    IllegalProperty,
    InvalidRecord,
    StoreError,
)

LOG: Final = logging.getLogger("escrow.edge")
OK: Final = pb.Status(code=pb.OK, message="OK")

_OF_EDGE: Final[dict[type[errors.EdgeError], pb.Code]] = {
    errors.Unauthorized: pb.UNAUTHORIZED,
    errors.Forbidden: pb.FORBIDDEN,
    errors.TransactionsRejected: pb.FORBIDDEN,
    errors.RefusedByService: pb.FORBIDDEN,
    errors.NoSuchTopic: pb.NOT_FOUND,
    errors.TooManyNames: pb.FORBIDDEN,
    errors.BadId: pb.INVALID_TRANSACTION_ID,
    errors.TooLarge: pb.PAYLOAD_TOO_LARGE,
    errors.QuotaExceeded: pb.TOO_MANY_REQUESTS,
    errors.Overloaded: pb.TOO_MANY_REQUESTS,
    errors.Standby: pb.HA_NOT_AVAILABLE,
}
_OF_STORE: Final[tuple[tuple[type[StoreError], pb.Code], ...]] = (
    (BodyTooLarge, pb.MESSAGE_BODY_TOO_LARGE),
    (BatchTooLarge, pb.PAYLOAD_TOO_LARGE),
    (DuplicateKey, pb.ILLEGAL_MESSAGE_ID),
    (DelayedHalf, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (IllegalProperty, pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (InvalidRecord, pb.BAD_REQUEST),
)
_OF_FIELD: Final = {
    "topic": pb.ILLEGAL_TOPIC,
    "group": pb.ILLEGAL_CONSUMER_GROUP,
    "tags": pb.ILLEGAL_FILTER_EXPRESSION,
    "receipts": pb.INVALID_RECEIPT_HANDLE,
    "visibility_s": pb.ILLEGAL_INVISIBLE_TIME,
}


class Refused(errors.EdgeError):
    """A request that this protocol has a code of its own for."""

    status = 400

    def __init__(self, code: pb.Code, text: str) -> None:
        super().__init__(text)
        self.wire_code = code


def name(code: int) -> str:
    return str(pb.Code.Name(code))


def of_error(error: Exception) -> pb.Status:
    """What an error becomes in the answer."""
    if isinstance(error, Refused):
        return pb.Status(code=error.wire_code, message=str(error))
    if isinstance(error, errors.EdgeError):
        return pb.Status(code=_of_edge(error), message=str(error))
    if isinstance(error, IllegalName):
        return pb.Status(code=_of_field(str(error)), message=str(error))
    if isinstance(error, StoreError):
        found = next((code for kind, code in _OF_STORE if isinstance(error, kind)), pb.INTERNAL_SERVER_ERROR)
        return pb.Status(code=found, message=str(error))
    LOG.error("a call failed with an unexpected error", exc_info=error)
    return pb.Status(code=pb.INTERNAL_ERROR, message="Escrow failed at this call; its log has the details")


def _of_edge(error: errors.EdgeError) -> pb.Code:
    found = _OF_EDGE.get(type(error))
    if found is not None:
        return found
    return _of_field(error.field) if isinstance(error, errors.InvalidRequest) else pb.INTERNAL_SERVER_ERROR


def _of_field(text: str) -> pb.Code:
    """By the field that a text begins with."""
    return _OF_FIELD.get(text.partition(":")[0].partition("[")[0], pb.BAD_REQUEST)


def of_end(answer: EndAnswer) -> pb.Status:
    """The same end again is as good as the first one; the opposite one is refused, and what was decided first stays."""
    if answer.verdict in ("accepted", "already"):
        return OK
    if answer.verdict == "conflict":
        text = f"the transaction has already ended with another outcome: it stays {answer.state}"
        return pb.Status(code=pb.PRECONDITION_FAILED, message=text)
    if answer.reason == "discarded":
        text = "the transaction was discarded: no answer came in time; an operator can resume it"
        return pb.Status(code=pb.PRECONDITION_FAILED, message=text)
    return pb.Status(code=pb.INVALID_TRANSACTION_ID, message=f"transaction_id: {answer.reason}")
