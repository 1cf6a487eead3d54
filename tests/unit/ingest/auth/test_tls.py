"""TLS: real handshakes over loopback, what is wrong named in one line, certificates renewed under a running server."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from ingest.auth.tls import Renewal, notice, server_context
from ingest.errors import TlsUnusable
from runtime.settings import SettingsError, load
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def pair(authority):
    return authority.issue("edge")


def settings_of(tmp_path, *flags):
    return load(None, [f"dataDir={tmp_path}", *flags], {})


def served_by(pair, tmp_path, *flags):
    return settings_of(tmp_path, f"tlsCertFile={pair.cert}", f"tlsKeyFile={pair.key}", *flags)


def trusting(authority, shown=None, most=None):
    context = ssl.create_default_context(cafile=str(authority.cert))
    if shown is not None:
        context.load_cert_chain(shown.cert, shown.key)
    if most is not None:
        context.maximum_version = most
    return context


def meet(context, *clients):
    """What each client gets: the serial number of the server's certificate and the TLS version, or the error."""

    async def echo(reader, writer):
        try:
            writer.write(await reader.read(1))
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def call(port, client):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            try:
                writer.write(b"x")
                if await reader.read(1) != b"x":
                    return "refused"
                shown = writer.get_extra_info("peercert")["serialNumber"]
                return shown, writer.get_extra_info("ssl_object").version()
            finally:
                writer.close()
        except (ssl.SSLError, OSError):
            return "refused"

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # refused handshakes are the server's business
        async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            found = []
            for client in clients:
                found.append(client() if not isinstance(client, ssl.SSLContext) else await call(port, client))
            return found

    return asyncio.run(run())


def test_without_a_certificate_there_is_no_tls(tmp_path):
    assert server_context(settings_of(tmp_path)) is None


def test_a_client_that_trusts_the_authority_is_served(tmp_path, authority, pair):
    ((_, version),) = meet(server_context(served_by(pair, tmp_path)), trusting(authority))
    assert version == "TLSv1.3"


def test_the_oldest_version(tmp_path, authority, pair):
    old = trusting(authority, most=ssl.TLSVersion.TLSv1_2)
    ((_, version),) = meet(server_context(served_by(pair, tmp_path)), old)
    assert version == "TLSv1.2"
    assert meet(server_context(served_by(pair, tmp_path, "tlsMinVersion=1.3")), old) == ["refused"]
    with pytest.raises(SettingsError, match="older versions are insecure"):
        settings_of(tmp_path, "tlsMinVersion=1.1")


def test_clients_must_show_a_certificate_that_is_signed(tmp_path, authority, pair):
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    context = server_context(served_by(pair, tmp_path, f"tlsClientCaFile={authority.cert}"))
    none, foreign, ours = meet(
        context, trusting(authority), trusting(authority, stranger), trusting(authority, authority.issue("client"))
    )
    assert (none, foreign) == ("refused", "refused")
    assert ours[1] == "TLSv1.3"


def test_a_renewed_certificate_counts_for_new_connections(tmp_path, authority):
    pair, client = authority.issue("renewed"), trusting(authority)
    settings = served_by(pair, tmp_path)
    context = server_context(settings)
    renewal = Renewal(context, settings)
    old_key = pair.key.read_bytes()

    def renew():
        authority.issue("renewed")
        renewal.look()
        return renewal.problem

    def half_renewed():
        """The certificate is there, its key not yet."""
        authority.issue("renewed")
        pair.key.write_bytes(old_key)
        renewal.look()
        return renewal.problem

    first, renewed, second, broken, third, repaired, fourth = meet(
        context, client, renew, client, half_renewed, client, renew, client
    )
    assert (renewed, repaired) == ("", "")
    assert "is not the key of" in broken
    assert first[0] != second[0]
    assert second == third, "the good one stays in use"
    assert fourth[0] != third[0]
    assert renewal.renewed == 2


def test_nothing_is_read_when_nothing_changed(tmp_path, pair):
    settings = served_by(pair, tmp_path)
    renewal = Renewal(server_context(settings), settings)
    renewal.look()
    assert renewal.renewed == 0
    Renewal(None, settings_of(tmp_path)).look()


def test_what_is_wrong_is_told_in_one_line(tmp_path, authority, pair):
    other, sealed = authority.issue("other"), authority.issue("sealed", passphrase=b"secret")
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    cases = [
        ((tmp_path / "none.pem", pair.key, ""), "tlsCertFile: .*none.pem: No such file"),
        ((pair.cert, tmp_path / "none.key", ""), "tlsKeyFile: .*none.key: No such file"),
        ((pair.cert, other.key, ""), "tlsKeyFile: .* is not the key of"),
        ((sealed.cert, sealed.key, ""), "without a passphrase"),
        ((junk, pair.key, ""), "tlsCertFile, tlsKeyFile: .*both as PEM"),
        ((pair.cert, pair.key, junk), "tlsClientCaFile: .*certificates as PEM"),
        ((pair.cert, pair.key, tmp_path / "none"), "tlsClientCaFile: .*No such file"),
    ]
    for (cert, key, ca), says in cases:
        with pytest.raises(TlsUnusable, match=says) as caught:
            server_context(settings_of(tmp_path, f"tlsCertFile={cert}", f"tlsKeyFile={key}", f"tlsClientCaFile={ca}"))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("tlsCertFile=x", "tlsCertFile: is set and tlsKeyFile is not"),
        ("tlsKeyFile=x", "tlsKeyFile: is set and tlsCertFile is not"),
        ("tlsClientCaFile=x", "tlsClientCaFile: is set and tlsCertFile is not"),
    ],
)
def test_half_of_the_settings(tmp_path, flag, says):
    with pytest.raises(SettingsError, match=says):
        settings_of(tmp_path, flag)


def test_plain_http_beyond_loopback_is_worth_a_notice(tmp_path, pair):
    assert notice(settings_of(tmp_path)) == ""
    assert "can be read on the way" in notice(settings_of(tmp_path, "listenAddress=0.0.0.0"))
    assert notice(served_by(pair, tmp_path, "listenAddress=0.0.0.0")) == ""
