"""The file of tokens, changed: what `escrow token` does. `ingest.auth.access` says what stands in it.

The text is edited, not written anew from what was parsed, so that comments stay; what comes out is parsed before it replaces the
file, and the edge that runs reads it within a second.
"""

from __future__ import annotations

import json
import secrets
from base64 import b32encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ingest.auth import secret_files
from ingest.auth.access import Token, digest_of, parse
from ingest.errors import TokensUnusable

HEADER: Final = """\
# Tokens of Escrow's edge: who may do what. Written by `escrow token`; hashes only, no token can be read out of it.
# The edge reads it again within a second after a change. Without any [[token]] every client is refused.
"""


def load(file: Path) -> dict[str, Token]:
    """The tokens of a file by id; none where there is no file."""
    return parse(secret_files.read(file), str(file))


def add(
    file: Path,
    name: str,
    produce: Sequence[str],
    consume: Sequence[str],
    *,
    deny_produce: Sequence[str] = (),
    deny_consume: Sequence[str] = (),
    operator: bool,
    metrics: bool,
    made_at: str,
    expires_at: str = "",
) -> str:
    """A new token. Only its hash is kept: a lost token cannot be shown again. The rules are those of `ingest.auth.grants`."""
    with secret_files.locked(file):
        text = secret_files.read(file)
        known = parse(text, str(file))
        id = _fresh_id(known)
        token = f"escrow_{id}_{secrets.token_urlsafe(32)}"
        entry: dict[str, Any] = {"name": name, "id": id, "sha256": digest_of(token).hex()}
        entry |= {"produce": list(produce), "consume": list(consume)}
        denied = {"deny_produce": list(deny_produce), "deny_consume": list(deny_consume)}
        entry |= {side: rules for side, rules in denied.items() if rules}
        lines = [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        lines += [f"operator = {str(operator).lower()}", f"metrics = {str(metrics).lower()}", f"made_at = {made_at}"]
        lines += [f"expires_at = {expires_at}"] if expires_at else []
        begun = (text.rstrip("\n") if text else HEADER.rstrip("\n")) + "\n\n"
        _replace(file, begun + "[[token]]\n" + "\n".join(lines) + "\n", lambda tokens: set(tokens) == {*known, id})
    return token


def rotate(file: Path, name_or_id: str, *, old_until: str, expires_at: str = "") -> tuple[str, Token]:
    """A new secret for a token. The old one counts until then; one that was old before counts no more."""
    with secret_files.locked(file):
        text = secret_files.read(file)
        known = parse(text, str(file))
        found = _find(known, name_or_id, file)
        token = f"escrow_{found.id}_{secrets.token_urlsafe(32)}"
        begin, *entries = secret_files.entries(text, "token")
        at = list(known).index(found.id)
        kept = [line for line in entries[at].rstrip("\n").split("\n") if _field(line) not in _changed_by_rotation(expires_at)]
        kept += [f'sha256 = "{digest_of(token).hex()}"', f'old_sha256 = "{found.digest.hex()}"', f"old_until = {old_until}"]
        kept += [f"expires_at = {expires_at}"] if expires_at else []
        entries[at] = "\n".join(kept) + ("\n\n" if at + 1 < len(entries) else "\n")
        _replace(file, begin + "".join(entries), lambda now: now.keys() == known.keys() and now[found.id].digest != found.digest)
    return token, found


def _field(line: str) -> str:
    return line.partition("=")[0].strip()


def _changed_by_rotation(expires_at: str) -> set[str]:
    return {"sha256", "old_sha256", "old_until", *(["expires_at"] if expires_at else [])}


def _find(known: dict[str, Token], name_or_id: str, file: Path) -> Token:
    found = [token for token in known.values() if name_or_id in (token.id, token.principal.name)]
    if len(found) != 1:
        raise TokensUnusable(f"{file}: {len(found)} tokens have the name or id {name_or_id!r}: escrow token list shows them")
    return found[0]


def revoke(file: Path, name_or_id: str) -> Token:
    """Take a token out; from the edge's next look on it is not known any more."""
    with secret_files.locked(file):
        text = secret_files.read(file)
        known = parse(text, str(file))
        found = _find(known, name_or_id, file)
        begin, *entries = secret_files.entries(text, "token")
        left = [entry for entry, id in zip(entries, known, strict=False) if id != found.id]
        _replace(file, begin + "".join(left), lambda tokens: set(tokens) == set(known) - {found.id})
    return found


def _replace(file: Path, text: str, right: Callable[[dict[str, Token]], bool]) -> None:
    if not right(parse(text, str(file))):
        raise TokensUnusable(f"{file}: its entries are not written as [[token]] each: change it by hand")
    secret_files.replace(file, text)


def _fresh_id(known: dict[str, Token]) -> str:
    while True:
        id = b32encode(secrets.token_bytes(5)).decode().lower()
        if id not in known:
            return id
