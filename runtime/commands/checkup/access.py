"""Keys, tokens and certificates."""

from __future__ import annotations

import importlib.util
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

from runtime.commands.checkup.finding import Finding, Level, user_name
from runtime.settings import Settings


def check_keys(settings: Settings) -> Iterator[Finding]:
    file = settings.keys_file
    if settings.id_keys:
        yield Finding(Level.OK, "id keys", "given by the setting idKeys")
    elif file.exists():
        yield _secret("id keys", file)
    elif (settings.store_dir / "format.json").exists():
        says = f"{file} is missing, and there is a store: no producer can end a transaction whose id the old key sealed"
        yield Finding(
            Level.FAIL, "id keys", says, "restore it from its backup before you start Escrow, which would create a new one"
        )
    else:
        yield Finding(Level.OK, "id keys", f"{file} is created at the first start; back it up")


def _secret(what: str, file: Path) -> Finding:
    try:
        found = file.stat()
        file.read_bytes()
    except OSError as error:
        return Finding(Level.FAIL, what, f"{file}: {error.strerror}", f"give it to this user: chown {user_name()} {file}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Finding(Level.WARN, what, f"{file} can be read by others", f"chmod 600 {file}")
    return Finding(Level.OK, what, str(file))


def check_tokens(settings: Settings) -> Iterator[Finding]:
    file = settings.tokens_file
    beyond = settings.listen_address not in ("127.0.0.1", "::1", "localhost")
    if not file.exists():
        if beyond:
            says = f"listenAddress is {settings.listen_address}, and there are no tokens: the edge refuses to start"
            yield Finding(Level.FAIL, "tokens", says, "escrow token new NAME --operator, or listen on 127.0.0.1")
        else:
            yield Finding(Level.OK, "tokens", "none: every user of this machine has all rights, other machines have none")
        return
    yield _secret("tokens", file)
    if importlib.util.find_spec("msgspec") is None:
        return
    from ingest.auth import token_file
    from ingest.errors import EdgeError

    try:
        count = len(token_file.load(file))
    except EdgeError as error:
        yield Finding(Level.FAIL, "tokens", str(error), "correct the file, or create a new one with escrow token new")
    else:
        if not count:
            yield Finding(
                Level.WARN, "tokens", f"{file} contains none: every request is refused", "escrow token new NAME --operator"
            )
        if beyond and not settings.tls_cert_file:
            says = f"listenAddress is {settings.listen_address} without TLS: tokens can be read on the network"
            yield Finding(Level.WARN, "TLS", says, "set tlsCertFile and tlsKeyFile, or put a proxy in front")


def check_tls(settings: Settings) -> Iterator[Finding]:
    if not settings.tls_cert_file:
        return
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        why = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        says = f"{settings.tls_cert_file} and {settings.tls_key_file}: {why}"
        yield Finding(Level.FAIL, "TLS", says, "certificate (with its chain) and key must be PEM, belong together, and be readable")
    else:
        yield Finding(Level.OK, "TLS", settings.tls_cert_file)
        yield _secret("TLS key", Path(settings.tls_key_file))
