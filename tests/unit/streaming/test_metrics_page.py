"""The job's metrics page: who may read it, and who cannot keep it busy."""

from __future__ import annotations

import http.client
import socket
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from ingest.auth import token_file
from ingest.auth.access import Access
from runtime.settings import load
from streaming import metrics_page
from streaming.errors import JobError
from streaming.metrics_page import CONNECTIONS_MAX, MetricsPage, serve_metrics


def settings_of(tmp_path, *flags):
    return load(None, [f"dataDir={tmp_path}", "jobMetricsPort=0", *flags], {})


def new(tmp_path, name, **roles):
    given = {"operator": False, "metrics": False, **roles}
    return token_file.add(tmp_path / "keys" / "tokens.toml", name, ["g:*"], [], made_at="2026-01-02T03:04:05Z", **given)


@pytest.fixture
def page(tmp_path):
    """page(): one that serves."""
    made = []

    def make():
        registry = CollectorRegistry()
        Gauge("escrow_test", "A test", registry=registry).set(7)
        made.append(MetricsPage("127.0.0.1", 0, registry, Access(settings_of(tmp_path))))
        return made[-1].server_port

    yield make
    for each in made:
        each.shutdown()
        each.server_close()


def get(port, path="/metrics", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_without_tokens_loopback_reads_it_and_no_page_or_proxy(page):
    port = page()
    assert get(port) == (200, "# HELP escrow_test A test\n# TYPE escrow_test gauge\nescrow_test 7.0\n")
    assert get(port, "/else")[0] == 404
    assert get(port, Host="evil.example")[0] == 403
    assert get(port, Sec_Fetch_Site="cross-site")[0] == 403
    assert get(port, X_Forwarded_For="203.0.113.9")[0] == 403
    assert get(port, Accept="text/plain;version=nonsense")[0] == 200


def test_with_tokens_it_needs_the_role(tmp_path, page):
    metrics, producer = new(tmp_path, "prometheus", metrics=True), new(tmp_path, "p")
    port = page()
    assert get(port)[0] == 401
    assert get(port, Authorization=f"Bearer {producer}")[0] == 403
    assert get(port, Authorization=f"Bearer {metrics}", Host="escrow:7482")[0] == 200


def test_beyond_loopback_it_needs_tokens(tmp_path):
    settings = settings_of(tmp_path, "metricsAddress=0.0.0.0")
    with pytest.raises(JobError, match=r"metricsAddress: .* there are no tokens"):
        serve_metrics(settings, CollectorRegistry())


def test_silent_clients_are_hung_up_on(page, monkeypatch):
    monkeypatch.setattr(metrics_page, "DEADLINE_S", 0.3)
    port = page()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(CONNECTIONS_MAX + 4)]
        silent[0].sendall(b"GET /metrics HTTP/1.1\r\n")
        assert [wire.recv(100) for wire in silent[1:]] == [b""] * (CONNECTIONS_MAX + 3)
        assert get(port)[0] == 200


def test_two_hosts_are_refused(page):
    with socket.create_connection(("127.0.0.1", page()), 20) as wire:
        wire.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n")
        assert b" 400 " in wire.recv(1000)
