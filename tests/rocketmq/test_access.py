"""Access keys, namespaces and TLS, by RocketMQ's own clients."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ingest.auth import access_keys, token_file
from tests.support.certificates import Authority
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import quiet_port
from tests.support.live import ROOT, live
from tests.support.players import KINDS, PlayerError


def new_keys(data, name, produce=(), consume=()):
    """A token, and an access key and a secret key for its holder."""
    file = data / "keys" / "tokens.toml"
    token = token_file.add(file, name, produce, consume, operator=False, metrics=False, made_at="2026-01-02T03:04:05Z")
    return token, access_keys.add(data / "keys" / "rocketmq.toml", name, token.split("_")[1])


def keys_by_command(data, name):
    """As an operator makes them."""
    command = [sys.executable, "-m", "escrow", "token", "access-key", name, "--data", str(data)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    access_key, secret_key = (line.rpartition(" ")[2] for line in told.splitlines())
    return access_key, secret_key


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """(endpoints, HTTP port, keys by name) of an Escrow with tokens."""
    data, port = tmp_path_factory.mktemp("guarded") / "data", quiet_port()
    made = {
        "both": new_keys(data, "both", ["orders*", "team%*"], ["orders*", "team%*"]),
        "producer": new_keys(data, "producer", ["orders*"]),
        "consumer": new_keys(data, "consumer", [], ["orders*"]),
        "gone": new_keys(data, "gone", ["orders*"], ["orders*"]),
    }
    made["both"] = made["both"][0], keys_by_command(data, "both")
    token_file.revoke(data / "keys" / "tokens.toml", "gone")
    assert (data / "keys" / "rocketmq.toml").stat().st_mode & 0o077 == 0
    with live(data, f"grpcPort={port}") as escrow:
        yield f"127.0.0.1:{port}", escrow.port, made


@pytest.mark.parametrize("kind", KINDS)
def test_good_keys_do_everything_their_token_may(kind, guarded, start):
    endpoints, port, made = guarded
    it = start(kind, endpoints, keys=made["both"][1])
    topic = f"orders-{kind}"
    it.do("producer", topic)
    it.do("half", topic, "asked", "commit", "silent")
    it.until("check", "asked")
    it.do("simple", "g", topic, "*")
    assert [message.body for message in it.receive_all(1)] == ["asked"]
    with EdgeClient(port, token=made["both"][0]) as http:
        assert [message["body"] for message in http.consume(topic)] == [b"asked"]


@pytest.mark.parametrize("who", ["nobody", "forger", "gone"])
@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_not_known_gets_nothing(kind, who, guarded, start):
    endpoints, _, made = guarded
    shown = {"nobody": ("", ""), "forger": (made["both"][1][0], "made up"), "gone": made["gone"][1]}[who]
    it = start(kind, endpoints, keys=shown)
    with pytest.raises(PlayerError) as refused:
        _send(it, "orders")
    said = f"{refused.value.kind} {refused.value.text}".lower()
    assert "unauthorized" in said or "authorization" in said or "route" in said


def _send(it, topic):
    it.do("producer", topic)
    it.do("send", topic, "x", "", "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_role_that_is_missing_is_told(kind, guarded, start):
    endpoints, _, made = guarded
    it = start(kind, endpoints, keys=made["consumer"][1])
    with pytest.raises(PlayerError) as refused:
        _send(it, "orders")
    assert refused.value.kind == "ForbiddenException"
    assert "may not send to topic 'orders' as group 'orders'" in refused.value.text
    it = start(kind, endpoints, keys=made["producer"][1])
    it.do("simple", "g", "orders", "*")
    with pytest.raises(PlayerError) as refused:
        it.do("receive", 1, 15)
    assert refused.value.kind == "ForbiddenException"


@pytest.mark.parametrize("kind", KINDS)
def test_a_namespace_is_part_of_the_names(kind, guarded, start):
    endpoints, port, made = guarded
    it = start(kind, endpoints, keys=made["both"][1], namespace="team")
    topic = f"paid-{kind}"
    it.do("producer", topic)
    it.do("half", topic, "ours", "commit", "silent")
    it.until("check", "ours")
    it.do("simple", "g", topic, "*")
    assert [message.body for message in it.receive_all(1)] == ["ours"]
    with EdgeClient(port, token=made["both"][0]) as http:
        assert [message["body"] for message in http.consume(f"team%{topic}")] == [b"ours"]
        assert http.consume(f"orders-{topic}") == []


@pytest.mark.parametrize("kind", KINDS)
def test_tls_with_both_ports_open(kind, tmp_path, start):
    """Java's client takes any certificate; Python's is shown ours as an authority."""
    authority = Authority(tmp_path / "tls")
    pair = authority.issue("edge")
    plain, secured = quiet_port(), quiet_port()
    flags = (f"grpcPort={plain}", f"grpcTlsPort={secured}", f"tlsCertFile={pair.cert}", f"tlsKeyFile={pair.key}")
    environ = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.cert)}
    with live(tmp_path / "data", *flags):
        it = start(kind, f"localhost:{secured}", tls=True, environ=environ)
        it.do("producer", "t")
        it.do("half", "t", "sealed", "commit", "silent")
        it.until("check", "sealed")
        reader = start(kind, f"127.0.0.1:{plain}")
        reader.do("simple", "g", "t", "*")
        assert [message.body for message in reader.receive_all(1)] == ["sealed"]
