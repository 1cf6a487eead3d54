"""Webhooks: a group's check requests as signed POSTs. docs/producers-webhooks.md is this page for those who receive them.

Request: JSON as of GET /v1/groups/{group}/checks, and `group`; headers
    Escrow-Timestamp    seconds since 1970, when it was signed
    Escrow-Signature    v1= and the HMAC-SHA-256, in hexadecimal digits, of timestamp, a full stop and the body as it is
    Escrow-Check-Id     the same when a request is repeated: transaction id, a full stop, attempt

What comes back, and what is made of it:
    2xx with {"outcome": "commit" | "rollback" | "unknown"} and nothing else   handed over; the outcome is recorded
    2xx with anything else, or with more than 64 KiB                           handed over; UNKNOWN, with a remark
    no connection, time-out, 408, 425, 429, 5xx                                not handed over; tried again, then given back
    3xx (never followed), 4xx                                                  not handed over; given back at once
What is given back is for another member of the group, in this round still; nothing was counted.

The secret is read for every request, so that a new one counts at once; it is in no log, no status and no error.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import ssl
from dataclasses import dataclass
from json import JSONDecodeError, loads
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from ingest.checks import wire
from ingest.checks.delivery import CheckRequest
from ingest.groups import Webhook

if TYPE_CHECKING:
    import httpx

ANSWER_MAX_BYTES: Final = 64 << 10
SECRET_MIN_CHARACTERS: Final = 16
OUTCOMES: Final = ("commit", "rollback", "unknown")
_AGAIN: Final = frozenset({408, 425, 429})
# It would log every URL, and a query may hold a secret.
logging.getLogger("httpx").setLevel(logging.WARNING)


class NotHandedOver(Exception):
    """A check request was not delivered; the text says why. `again`: a retry may work in a moment."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a 2xx says."""

    outcome: str
    remark: str = ""


def sign(secret: str, timestamp_s: int, body: bytes) -> str:
    """The value of Escrow-Signature."""
    return "v1=" + hmac.new(secret.encode(), f"{timestamp_s}.".encode() + body, hashlib.sha256).hexdigest()


def encode(group: str, request: CheckRequest, id: str) -> bytes:
    """The body of a request."""
    return msgspec.json.encode({"group": group, **msgspec.structs.asdict(wire.check(request, id))})


def verdict_of(content: bytes | None) -> Verdict:
    """Only an explicit verdict settles: {"outcome": …} exactly. None: the answer was too long."""
    if content is None:
        return Verdict("unknown", f"webhook: answered with more than {ANSWER_MAX_BYTES} bytes")
    try:
        found = loads(content)
    except (JSONDecodeError, UnicodeDecodeError, RecursionError):
        return Verdict("unknown", "webhook: answered 2xx with something that is not JSON")
    if not isinstance(found, dict) or set(found) != {"outcome"} or found["outcome"] not in OUTCOMES:
        return Verdict("unknown", 'webhook: answered 2xx without {"outcome": "commit" | "rollback" | "unknown"} exactly')
    return Verdict(found["outcome"])


class WebhookClient:
    """Posts to one group's webhook. Made in a thread: reading authorities takes a while."""

    def __init__(self, group: str, webhook: Webhook) -> None:
        import httpx  # noqa: PLC0415 - a quarter of what an edge loads, and most edges have no webhook

        self._errors = (httpx.HTTPError, httpx.InvalidURL, OSError)
        self.group, self.webhook = group, webhook
        parts = urlsplit(webhook.url)
        #: For the status: a path or a query may hold a secret.
        self.shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
        self._client = httpx.AsyncClient(
            # Neither a proxy nor anything else from the environment: requests go where the file says.
            trust_env=False,
            verify=self._trusted(parts.scheme),
            follow_redirects=False,
            timeout=None,  # the whole attempt has one, below
            limits=httpx.Limits(max_connections=webhook.concurrency, max_keepalive_connections=webhook.concurrency),
            headers={"Content-Type": "application/json", "User-Agent": "escrow", "Accept": "application/json"},
        )

    def _trusted(self, scheme: str) -> ssl.SSLContext | bool:
        if scheme == "http":
            return False
        try:
            return ssl.create_default_context(cafile=str(self.webhook.ca_file) if self.webhook.ca_file else None)
        except OSError as error:  # SSLError is one
            raise NotHandedOver(f"ca_file: {self.webhook.ca_file} cannot be used: {error.strerror or error}") from None

    async def post(self, check_id: str, body: bytes, timestamp_s: int) -> Verdict:
        """One attempt; NotHandedOver unless a 2xx came."""
        headers = {
            "Escrow-Timestamp": str(timestamp_s),
            "Escrow-Signature": sign(self._secret(), timestamp_s, body),
            "Escrow-Check-Id": check_id,
        }
        try:
            async with self._client.stream("POST", self.webhook.url, content=body, headers=headers) as response:
                _judge(response.status_code)
                return verdict_of(await _read(response))
        except self._errors as error:
            raise NotHandedOver(f"no answer: {type(error).__name__}", again=True) from None

    def _secret(self) -> str:
        """From its file or its variable; what is wrong with it is told without it."""
        webhook = self.webhook
        if webhook.secret_file is None:
            secret, where = os.environ.get(webhook.secret_env, ""), f"variable {webhook.secret_env}"
        else:
            where = str(webhook.secret_file)
            try:
                secret = webhook.secret_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise NotHandedOver(f"secret: {where}: {type(error).__name__}: give this user access to it") from None
        if len(secret) < SECRET_MIN_CHARACTERS:
            raise NotHandedOver(f"secret: {where}: has fewer than {SECRET_MIN_CHARACTERS} characters: use a longer one")
        return secret

    async def close(self) -> None:
        await self._client.aclose()


def _judge(status: int) -> None:
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise NotHandedOver(f"answered {status}: redirects are not followed")
    raise NotHandedOver(f"answered {status}", again=status >= 500 or status in _AGAIN)


async def _read(response: httpx.Response) -> bytes | None:
    """The answer; None where it is too long. Compressed ones are read as they come, so that none can swell."""
    content = bytearray()
    async for piece in response.aiter_raw(ANSWER_MAX_BYTES):
        content += piece
        if len(content) > ANSWER_MAX_BYTES:
            return None
    return bytes(content)
