"""TLS of the endpoint: the context that the server listens with, and its renewal.

    context = server_context(settings)            # None: plain HTTP; TlsUnusable says in one line what is wrong
    renewal = Renewal(context, settings)          # then renewal.look() now and then, or `await renewal.watch()` as a task

A renewed certificate counts for connections that begin afterwards. It is tried in a context of its own first: certificate and key
are two files, and between the writing of the two they do not match. Authorities for clients (tlsClientCaFile) are read at the start
only: OpenSSL can add to a context, not take away.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from pathlib import Path
from typing import Final

from ingest.auth.access import is_loopback
from ingest.errors import TlsUnusable
from runtime.settings import Settings

LOOK_S: Final = 10.0
LOG: Final = logging.getLogger("escrow.edge")
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """What the server listens with; None where no certificate is set."""
    if not settings.tls_cert_file:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.tls_min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_pair(context, settings)
    if settings.tls_client_ca_file:
        _load_authorities(context, settings.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def notice(settings: Settings) -> str:
    """What an operator should read at the start; empty when nothing."""
    if settings.tls_cert_file or is_loopback(settings.listen_address):
        return ""
    return (
        f"listenAddress: {settings.listen_address} is served without TLS: tokens and messages can be read on the way. "
        "Set tlsCertFile and tlsKeyFile, or put a proxy with TLS in front"
    )


def _load_pair(context: ssl.SSLContext, settings: Settings) -> None:
    cert, key = settings.tls_cert_file, settings.tls_key_file
    _readable(cert, "tlsCertFile")
    _readable(key, "tlsKeyFile")
    try:
        # A key with a passphrase would make OpenSSL ask on the terminal: an empty one makes it fail.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise TlsUnusable(f"tlsKeyFile: {key} is not the key of {cert}: name the two that belong together") from None
        raise TlsUnusable(
            f"tlsCertFile, tlsKeyFile: {cert} or {key} cannot be used ({error.reason or 'not PEM'}): "
            "give a certificate and a key without a passphrase, both as PEM"
        ) from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _readable(path, "tlsClientCaFile")
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsUnusable(
            f"tlsClientCaFile: {path} cannot be used ({error.reason or 'not PEM'}): give certificates as PEM"
        ) from None


def _readable(path: str, key: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise TlsUnusable(f"{key}: {path}: {error.strerror}: name a file that this user can read") from None


class Renewal:
    """Takes a renewed certificate up. `problem` says why a new one is not used; the old one serves meanwhile."""

    def __init__(self, context: ssl.SSLContext | None, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._stamp = self._stat()
        self.problem = ""
        self.renewed = 0

    def look(self) -> None:
        """Read the files again if they changed, or if they could not be used before."""
        stamp = self._stat()
        if self._context is None or (stamp == self._stamp and not self.problem):
            return
        self._stamp = stamp
        try:
            _load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._settings)
            _load_pair(self._context, self._settings)
        except TlsUnusable as error:
            if str(error) != self.problem:
                LOG.warning("%s; the certificate that was in use stays so", error)
            self.problem = str(error)
            return
        self.problem = ""
        self.renewed += 1
        LOG.info("%s: read again", self._settings.tls_cert_file)

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _stat(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in (self._settings.tls_cert_file, self._settings.tls_key_file):
            try:
                status = os.stat(path)
                found += [status.st_mtime_ns, status.st_size, status.st_ino]
            except OSError:
                found.append(None)
        return tuple(found)
