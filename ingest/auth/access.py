"""Who may: bearer tokens and their roles.

A token is `escrow_<id>_<secret>`: id 8 letters and digits (a-z, 2-7) by which it is found, secret 43 characters of base64url, which
are 256 random bits. The file of tokens (TOML, setting tokensFile, `escrow token` writes it) holds what cannot be turned back:

    [[token]]
    name = "orders-service"          # who it is: shown in logs and in the history, never the secret
    id = "k3v7q2xa"
    sha256 = "…"                     # of the whole token, 64 hexadecimal digits
    produce = ["orders*:order-*"]    # GROUP:TOPIC, `ingest.auth.grants`
    consume = ["invoices:billing"]   # TOPIC:GROUP
    deny_produce = []                # the same forms; what they cover is refused
    deny_consume = []
    expires_at = 2027-01-01T00:00:00Z          # optional: not let in from then on
    old_sha256 = "…"                 # after a rotation: the secret before this one,
    old_until = 2026-01-02T00:00:00Z #   good until then
    operator = false                 # resume, status, every transaction; and metrics
    metrics = false

SHA-256 is enough where a password would need a slow hash: a password is guessed from a list, 256 random bits are not, however
fast the hash; and a slow one would be paid on every request. The comparison takes as long for an unknown id as for a wrong secret.

No file: no token is needed, and only loopback may be listened on. A file without a token lets no client in. Once tokens were read,
a file that is gone or broken leaves them in force (`ingest.auth.reloading_file`): losing a file must not open the door.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import re
import time
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from ingest.auth.grants import EVERYTHING, RULE, Grants, wide_rules
from ingest.auth.reloading_file import Watched
from ingest.auth.shares import Shares
from ingest.errors import CannotStart, Forbidden, TokensUnusable, Unauthorized
from runtime.settings import Settings
from store.naming import DLQ_PREFIX, SYSTEM_PREFIX

TOKEN: Final = re.compile(r"escrow_([a-z2-7]{8})_[A-Za-z0-9_-]{43}")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
#: Headers that are known to be good; a client sends the same one with every request.
CACHE_MAX: Final = 4096
#: A header with a token has 67; the same token among many blanks is looked up each time.
CACHED_MAX_CHARACTERS: Final = 128
_EXPIRES: Final = ("expires_at", "old_sha256", "old_until")
_RULES: Final = ("produce", "consume", "deny_produce", "deny_consume")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_FIELDS: Final = frozenset({"name", "id", "sha256", *_RULES, "operator", "metrics", "made_at", *_EXPIRES})
LOG: Final = logging.getLogger("escrow.edge")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and what they may do. `require_…` raise Forbidden and say which role is missing."""

    name: str
    produce: Grants = field(default_factory=Grants)
    consume: Grants = field(default_factory=Grants)
    operator: bool = False
    metrics: bool = False
    #: Of the token that they show: another token may have the same name later.
    token_id: str = ""

    @property
    def is_limited(self) -> bool:
        """Whether `ingest.auth.shares` counts what they take: not without tokens, and not operators."""
        return bool(self.token_id) and not self.operator

    def may_produce(self, group: str) -> bool:
        """For some topic: end, answer checks, see transactions."""
        return self.produce.covers_some(group)

    def require_produce(self, group: str) -> None:
        if not self.may_produce(group):
            self._refuse(f"produce for group {group[:80]!r}", f"--produce {group[:80]}:TOPIC")

    def require_send(self, group: str, topic: str) -> None:
        """To store a half or a message of this group for this topic."""
        if topic.startswith((DLQ_PREFIX, SYSTEM_PREFIX)):
            raise Forbidden(f"topic {topic[:80]!r}: only Escrow writes to {DLQ_PREFIX}… and {SYSTEM_PREFIX}…; take another topic")
        if not self.produce.covers(group, topic):
            what = f"send to topic {topic[:80]!r} as group {group[:80]!r}"
            self._refuse(what, f"--produce {group[:80]}:{topic[:80]}")

    def require_consume(self, topic: str, group: str) -> None:
        """To read a topic, acknowledge, seek and replay as this consumer group."""
        if not self.consume.covers(topic, group):
            what = f"consume topic {topic[:80]!r} as group {group[:80]!r}"
            self._refuse(what, f"--consume {topic[:80]}:{group[:80]}")

    def require_read(self, topic: str) -> None:
        """To read a topic by place: any caller that may consume it as some group."""
        if not self.consume.covers_some(topic):
            self._refuse(f"read topic {topic[:80]!r}", f"--consume {topic[:80]}:GROUP")

    def require_some(self, role: str) -> None:
        """Producer or consumer: of anything at all."""
        if not (self.produce if role == "producer" else self.consume).allowed:
            self._refuse(f"act as {role}", "--produce GROUP:TOPIC" if role == "producer" else "--consume TOPIC:GROUP")

    def require_operator(self) -> None:
        if not self.operator:
            self._refuse("act as operator", "--operator")

    def require_metrics(self) -> None:
        if not self.metrics:
            self._refuse("read metrics", "--metrics")

    def _refuse(self, what: str, flag: str) -> None:
        raise Forbidden(f"token {self.name}: may not {what}; use a token that may (escrow token new NAME {flag})")


NOBODY: Final = Principal("nobody")
ANONYMOUS: Final = Principal("anonymous", EVERYTHING, EVERYTHING, operator=True, metrics=True)


@dataclass(frozen=True, slots=True)
class Token:
    """One entry of the file."""

    id: str
    digest: bytes
    principal: Principal
    entry: Mapping[str, Any]
    expires_at_s: float = math.inf
    #: The secret of before a rotation, and how long it counts.
    old_digest: bytes = bytes(32)
    old_until_s: float = 0.0

    def good_until_s(self, digest: bytes) -> float:
        """Until when this secret is valid; 0 if it is not one of the token's."""
        # Both are compared, whatever the first one says: the answer takes as long.
        is_new, is_old = hmac.compare_digest(digest, self.digest), hmac.compare_digest(digest, self.old_digest)
        return self.expires_at_s if is_new else min(self.expires_at_s, self.old_until_s) if is_old else 0.0

    @property
    def wide(self) -> list[str]:
        return wide_rules(self.entry)


_NO_TOKEN: Final = Token("", bytes(32), NOBODY, {})


class Access:
    """Identifies a caller by its Authorization header. For one event loop."""

    def __init__(
        self,
        settings: Settings,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
        listen_address: str | None = None,
    ) -> None:
        self._wall_s = wall_s
        self.shares = Shares(settings)
        self._file = settings.tokens_file
        self._loopback = is_loopback(settings.listen_address if listen_address is None else listen_address)
        self._read_once = False
        self._cache: dict[str, tuple[Principal, float]] = {}
        self._version = self._by_name_version = 0
        self._by_name: dict[str, Token] = {}
        #: Told the tokens whenever they were read again.
        self.on_read: Callable[[Iterable[Token]], None] | None = None
        self._watched = Watched(self._file, self._parse, clock_s)

    def _parse(self, text: str | None) -> dict[str, Token] | None:
        if text is None:
            if self._read_once:
                raise TokensUnusable(f"{self._file}: is gone: put it back; to do without tokens, start the edge again")
            return None
        tokens = parse(text, str(self._file))
        self._read_once = True
        for token in tokens.values():
            for advice in token.wide:
                LOG.warning("%s: token %s: %s", self._file, token.principal.name, advice)
        if self.on_read is not None:
            self.on_read(tokens.values())
        return tokens

    def follow(self, wall_s: Callable[[], float]) -> None:
        """Expiry goes by this clock from now on: the edge's, once it is open."""
        self._wall_s = wall_s

    @property
    def has_tokens(self) -> bool:
        return bool(self._watched.get())

    @property
    def wants_tokens(self) -> bool:
        """There is a tokens file, even an empty one: a caller on loopback is not taken for a user of this machine."""
        return self._watched.get() is not None

    @property
    def tokens(self) -> Collection[Token]:
        return (self._watched.get() or {}).values()

    @property
    def notice(self) -> str:
        """For the operator, at the start; empty where there is nothing to say."""
        wide = [token.principal.name for token in self.tokens if token.wide]
        return f"tokens {', '.join(wide)}: rules that leave topics or groups open (escrow token list tells more)" if wide else ""

    @property
    def is_open(self) -> bool:
        """No token is needed: there is no tokens file, and only this machine can connect."""
        return self._watched.get() is None and self._loopback

    @property
    def problem(self) -> str:
        """What is wrong with the file, for status; empty when nothing is."""
        self._watched.get()
        return self._watched.problem

    def holder(self, name: str, token_id: str) -> Principal:
        """The holder of a token, by its id, or by its name where the id is not known; Unauthorized if there is no such token."""
        tokens = self._watched.get() or {}
        found = tokens.get(token_id) if token_id else self._named(tokens).get(name)
        if found is None:
            raise Unauthorized("the token that this is a key of is not known here any more: was it revoked?")
        self._check_time(found.expires_at_s)
        return found.principal

    def _named(self, tokens: Mapping[str, Token]) -> dict[str, Token]:
        if self._by_name_version != self._watched.version or not self._by_name:
            self._by_name_version = self._watched.version
            self._by_name = {token.principal.name: token for token in tokens.values()}
        return self._by_name

    def _check_time(self, until_s: float) -> None:
        if until_s != math.inf and self._wall_s() >= until_s:
            raise Unauthorized("the token has expired: make another one (escrow token new, escrow token rotate)")

    def principal(self, authorization: str | None) -> Principal:
        """The caller that sends this header; Unauthorized if it is not known."""
        tokens = self._watched.get()
        if tokens is None:
            if self._loopback:
                return ANONYMOUS
            raise Unauthorized(f"there are no tokens here: make one with escrow token new ({self._file})")
        if self._version != self._watched.version:
            self._version = self._watched.version
            self._cache.clear()
        found, until_s = self._cache.get(authorization or "") or self._look_up(tokens, authorization)
        self._check_time(until_s)
        return found

    def _look_up(self, tokens: Mapping[str, Token], authorization: str | None) -> tuple[Principal, float]:
        """Whose it is, and until when it counts."""
        if not authorization:
            raise Unauthorized("Authorization: is missing; send Bearer and a token of this edge (escrow token new)")
        scheme, _, text = authorization.partition(" ")
        matched = TOKEN.fullmatch(text.strip(" "))
        if scheme.lower() != "bearer" or matched is None:
            raise Unauthorized("Authorization: not a bearer token; send Bearer escrow_…, exactly as escrow token new printed it")
        # Compared for an unknown id as well: the answer takes as long.
        token = tokens.get(matched[1], _NO_TOKEN)
        until_s = token.good_until_s(digest_of(matched[0]))
        if not until_s:
            raise Unauthorized("Authorization: the token is not known here: was it revoked, or is it of another edge?")
        if len(authorization) <= CACHED_MAX_CHARACTERS:
            if len(self._cache) >= CACHE_MAX:
                self._cache.clear()
            self._cache[authorization] = token.principal, until_s
        return token.principal, until_s

    def figures(self) -> dict[str, Any]:
        tokens = self._watched.get()
        wide = [token.principal.name for token in self.tokens if token.wide]
        return {"tokens": None if tokens is None else len(tokens), "wide": wide, "problem": self._watched.problem}


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def is_loopback(address: str) -> bool:
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


# --- the file ------------------------------------------------------------------------------------------------------------
def parse(text: str, where: str) -> dict[str, Token]:
    """The tokens of a file by id; TokensUnusable names the entry and the field."""
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise TokensUnusable(f"{where}: not valid TOML: {_without_values(error)}") from None
    entries = content.pop("token", [])
    if content or not isinstance(entries, list):
        strange = next(iter(content), "token")
        raise TokensUnusable(f"{where}: {strange}: only [[token]] entries belong here: remove it")
    tokens: dict[str, Token] = {}
    names: set[str] = set()
    for number, entry in enumerate(entries, 1):
        token = _token(entry, f"{where}: token {number}")
        if token.id in tokens or token.principal.name in names:
            raise TokensUnusable(f"{where}: token {number}: its id or its name is there twice: remove one of them")
        tokens[token.id] = token
        names.add(token.principal.name)
    return tokens


def _without_values(error: ValueError) -> str:
    """Where the TOML breaks, and nothing of what stands there: it may be a token that was pasted."""
    found = re.search(r"at line \d+, column \d+", str(error))
    return found[0] if found else "at its end"


def _token(entry: object, where: str) -> Token:
    if not isinstance(entry, dict):
        raise TokensUnusable(f"{where}: not a table: write [[token]]")
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise TokensUnusable(f"{where}: {unknown[0][:64]}: no such field; there are {', '.join(sorted(_FIELDS))}")
    name = _text(entry, "name", NAME, "1 to 64 letters, digits and . _ @ -", where)
    where = f"{where} ({name})"
    id = _text(entry, "id", re.compile(r"[a-z2-7]{8}"), "the 8 characters behind escrow_", where)
    digest = _text(entry, "sha256", _DIGEST, "64 hexadecimal digits", where)
    operator = _switch(entry, "operator", where)
    principal = Principal(
        name,
        Grants.of(_rules(entry, "produce", where), _rules(entry, "deny_produce", where)),
        Grants.of(_rules(entry, "consume", where), _rules(entry, "deny_consume", where)),
        operator,
        _switch(entry, "metrics", where) or operator,
        id,
    )
    old = _text(entry, "old_sha256", _DIGEST, "64 hexadecimal digits", where) if "old_sha256" in entry else "00" * 32
    old_until_s = _time(entry, "old_until", where, absent_s=0.0)
    return Token(id, bytes.fromhex(digest), principal, entry, _time(entry, "expires_at", where), bytes.fromhex(old), old_until_s)


def _text(entry: Mapping[str, Any], name: str, form: re.Pattern[str], wanted: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise TokensUnusable(f"{where}: {name}: must be {wanted}")
    return value


def _time(entry: Mapping[str, Any], name: str, where: str, absent_s: float = math.inf) -> float:
    value = entry.get(name)
    if value is None:
        return absent_s
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TokensUnusable(f"{where}: {name}: must be a time with its zone, such as 2027-01-01T00:00:00Z")
    return value.timestamp()


def _switch(entry: Mapping[str, Any], name: str, where: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise TokensUnusable(f"{where}: {name}: must be true or false")
    return value


def _rules(entry: Mapping[str, Any], name: str, where: str) -> list[str]:
    value = entry.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and RULE.fullmatch(each) for each in value):
        form = "TOPIC:GROUP" if name.endswith("consume") else "GROUP:TOPIC"
        raise TokensUnusable(f"{where}: {name}: must be a list of {form}; a * may end a name and stand nowhere else")
    return value


def check_listening(settings: Settings, access: Access) -> None:
    """Beyond loopback only with tokens: CannotStart says what to do otherwise."""
    if not is_loopback(settings.listen_address) and not access.has_tokens:
        raise CannotStart(
            f"listenAddress: {settings.listen_address} is reachable from elsewhere, and there are no tokens in "
            f"{settings.tokens_file}: make one (escrow token new) or listen on 127.0.0.1"
        )
