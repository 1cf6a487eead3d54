"""Problems (RFC 9457): what an error becomes on the wire. docs/http-api.md lists the codes."""

from __future__ import annotations

import logging
from http import HTTPStatus
from math import ceil
from typing import Final

from msgspec import Struct

from ingest.errors import EdgeError, MethodNotAllowed
from store.errors import BatchTooLarge, BodyTooLarge, DuplicateKey, InvalidRecord, StoreError

MEDIA: Final = b"application/problem+json"
LOG: Final = logging.getLogger("escrow.edge")

Headers = list[tuple[bytes, bytes]]


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `detail` tells what to do; `field` names what is wrong."""

    status: int
    code: str
    title: str
    detail: str
    field: str = ""


def problem(status: int, code: str, detail: str, field: str = "") -> Problem:
    return Problem(status, code, HTTPStatus(status).phrase, detail, field)


def of_error(error: Exception) -> tuple[Problem, Headers]:
    """The problem, and the headers that go with it."""
    if isinstance(error, EdgeError):
        return problem(error.status, error.code, str(error), error.field), _headers(error)
    if isinstance(error, InvalidRecord):
        return _of_record(error), []
    if isinstance(error, StoreError):
        return problem(503, "store", str(error)), [(b"retry-after", b"5")]
    LOG.error("a request failed with an unexpected error", exc_info=error)
    return problem(500, "internal", "Escrow failed at this request; its log has the details"), []


def _headers(error: EdgeError) -> Headers:
    headers: Headers = []
    if error.retry_after_s:
        headers.append((b"retry-after", b"%d" % ceil(error.retry_after_s)))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allowed).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="escrow"'))
    return headers


def _of_record(error: InvalidRecord) -> Problem:
    """The store names the field; the batch gives it its number."""
    text = str(error)
    field = text.partition(":")[0]
    if error.number >= 0 and not field.startswith("messages"):
        field, text = f"messages[{error.number}].{field}", f"messages[{error.number}].{text}"
    if isinstance(error, DuplicateKey):
        return problem(409, "duplicate_key", text, field)
    if isinstance(error, (BodyTooLarge, BatchTooLarge)):
        return problem(413, "too_large", text, field)
    return problem(400, "invalid", text, field)


def head_of(status: int, length: int, retry_after_s: float = 0.0) -> bytes:
    """The head of a refusal that no application writes; the connection ends with it."""
    phrase = HTTPStatus(status).phrase
    retry = f"retry-after: {ceil(retry_after_s)}\r\n" if retry_after_s else ""
    lines = (f"HTTP/1.1 {status} {phrase}", f"content-type: {MEDIA.decode()}", f"content-length: {length}", "connection: close")
    return ("\r\n".join(lines) + f"\r\n{retry}\r\n").encode()
