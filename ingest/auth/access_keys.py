"""Access keys: whose signature is it?

RocketMQ's clients sign with every call: `authorization: MQv2-HMAC-SHA1 Credential=<access key>, SignedHeaders=x-mq-date-time,
Signature=<hex of HMAC-SHA1(secret key, x-mq-date-time)>`. To check that, the secret itself is needed, not a hash of it. So the
file (TOML, setting accessKeysFile, `escrow token access-key` writes it, 0600) holds secrets, and nothing else does:

    [[key]]
    access_key = "k3v7q2xa"
    secret_key = "…"
    token = "orders-service"      # the token (`ingest.auth.access`) whose name and roles the holder has
    token_id = "q5zr3kdm"         # its id: another token of the same name is another token

A key counts as long as its token does: `escrow token revoke` takes both out of use and removes the key. Keys that were made before
there was a token_id go by the name; `escrow token new` removes such keys of its name, or they would count again. Without any token
no key is needed.

The signature covers the time only. Anyone who can read a call on the way can repeat its signature for as long as
the time is accepted (SKEW_MAX_S). Use TLS beyond loopback.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from ingest.auth import callers, secret_files
from ingest.auth.access import Access, Principal
from ingest.auth.reloading_file import Watched
from ingest.auth.shares import Shares
from ingest.errors import TokensUnusable, Unauthorized
from runtime.settings import Settings

HEADER: Final = """\
# Access keys of RocketMQ clients (docs/rocketmq-clients.md), written by `escrow token access-key`. Secrets: keep them so.
"""
#: Some clients (Python's) sign their local time: every time zone must pass.
SKEW_MAX_S: Final = 15 * 3600
_ACCESS_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
_FIELDS: Final = frozenset({"access_key", "secret_key", "token"})
_AUTHORIZATION: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=(?P<key>[^,/ ]{1,128})[^,]{0,256}, *SignedHeaders=x-mq-date-time, *"
    r"Signature=(?P<sign>[0-9a-fA-F]{40})"
)


class Key(NamedTuple):
    """One entry of the file; `token_id` is empty in those of before."""

    access_key: str
    secret: bytes
    token: str
    token_id: str = ""


_NO_KEY: Final = Key("", bytes(32), "")


class Signatures:
    """Knows who calls by the call's metadata. For one event loop."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self._access, self._file = access, settings.access_keys_file
        self._watched = Watched(self._file, self._parse)

    def _parse(self, text: str | None) -> dict[str, Key]:
        return {} if text is None else parse(text, str(self._file))

    @property
    def problem(self) -> str:
        """What is wrong with the file, for status; empty when nothing is."""
        self._watched.get()
        return self._watched.problem

    def principal(self, metadata: Mapping[str, str], now_s: float) -> Principal:
        """The caller that signed this call; Unauthorized if it is not known."""
        if self._access.is_open:
            callers.check_call(metadata)
            return self._access.principal(None)
        matched = _AUTHORIZATION.fullmatch(metadata.get("authorization", ""))
        if matched is None:
            raise Unauthorized(
                "authorization: no signature; set an access key and a secret key in the client (escrow token access-key makes them)"
            )
        key = self._watched.get().get(matched["key"], _NO_KEY)
        signed = metadata.get("x-mq-date-time", "")
        # Compared for an unknown key as well: the answer takes as long.
        good = hmac.compare_digest(hmac.digest(key.secret, signed.encode(), "sha1").hex(), matched["sign"].lower())
        if not key.token or not good:
            raise Unauthorized("authorization: the access key is not known, or the secret key is not the one that belongs to it")
        _check_time(signed, now_s)
        return self._access.holder(key.token, key.token_id)

    @property
    def shares(self) -> Shares:
        return self._access.shares

    def again(self, principal: Principal) -> Principal:
        """The same one's roles as they are now: for streams, which outlive changes. Unauthorized if the token is gone."""
        return self._access.principal(None) if self._access.is_open else self._access.holder(principal.name, principal.token_id)


def _check_time(signed: str, now_s: float) -> None:
    try:
        at_s = datetime.strptime(f"{signed} +0000", "%Y%m%dT%H%M%SZ %z").timestamp()
    except ValueError:
        raise Unauthorized("x-mq-date-time: not a time such as 20260131T235959Z") from None
    if abs(at_s - now_s) > SKEW_MAX_S:
        raise Unauthorized("x-mq-date-time: too far from the server's time: set the client's clock")


# --- the file ------------------------------------------------------------------------------------------------------------------
def parse(text: str, where: str) -> dict[str, Key]:
    """Keys by access key; TokensUnusable names the entry and the field, never a value."""
    try:
        content = tomllib.loads(text)
    except ValueError:
        raise TokensUnusable(f"{where}: not valid TOML") from None
    entries = content.pop("key", [])
    if content or not isinstance(entries, list):
        raise TokensUnusable(f"{where}: only [[key]] entries belong here: remove the rest")
    found: dict[str, Key] = {}
    for number, entry in enumerate(entries, 1):
        key = _key(entry, f"{where}: key {number}")
        if key.access_key in found:
            raise TokensUnusable(f"{where}: key {number}: its access_key is there twice: remove one of them")
        found[key.access_key] = key
    return found


def _key(entry: object, where: str) -> Key:
    if (
        not isinstance(entry, dict)
        or set(entry) - {"token_id"} != _FIELDS
        or not all(isinstance(each, str) for each in entry.values())
    ):
        raise TokensUnusable(
            f"{where}: must have {', '.join(sorted(_FIELDS))} and may have token_id, each a text, and nothing else"
        )
    said: dict[str, Any] = entry
    if _ACCESS_KEY.fullmatch(said["access_key"]) is None:
        raise TokensUnusable(f"{where}: access_key: must be 1 to 128 letters, digits and . _ @ -")
    if not said["secret_key"] or not said["token"]:
        raise TokensUnusable(f"{where}: secret_key, token: must not be empty")
    return Key(said["access_key"], said["secret_key"].encode(), said["token"], said.get("token_id", ""))


def load(file: Path) -> list[Key]:
    """All keys of a file; none where there is no file."""
    return list(parse(secret_files.read(file), str(file)).values())


def add(file: Path, token: str, token_id: str) -> tuple[str, str]:
    """A new pair for a token's holder: (access key, secret key)."""
    with secret_files.locked(file):
        text = secret_files.read(file) or HEADER
        known = parse(text, str(file))
        access_key = next(key for key in iter(lambda: secrets.token_hex(8), "") if key not in known)
        entry = {"access_key": access_key, "secret_key": secrets.token_urlsafe(32), "token": token, "token_id": token_id}
        lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items())
        secret_files.replace(file, f"{text.rstrip()}\n\n[[key]]\n{lines}")
    return access_key, entry["secret_key"]


def remove(file: Path, which: Callable[[Key], bool]) -> list[Key]:
    """Take keys out of the file: those that were there. The text of the others stays as it is."""
    with secret_files.locked(file):
        text = secret_files.read(file)
        known = parse(text, str(file))
        gone = [key for key in known.values() if which(key)]
        if not gone:
            return []
        begin, *entries = secret_files.entries(text, "key")
        left = "".join(entry for entry, key in zip(entries, known.values(), strict=False) if key not in gone)
        if set(parse(begin + left, str(file)).values()) != set(known.values()) - set(gone):
            raise TokensUnusable(f"{file}: its entries are not written as [[key]] each: change it by hand")
        secret_files.replace(file, begin + left)
    return gone
