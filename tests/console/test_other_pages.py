"""A page of somebody else, in a real browser beside a service without tokens: what can it bring about?"""

from __future__ import annotations

import http.server
import re
import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from tests.support.console_pages import PATIENCE_MS
from tests.support.edge_client import EdgeClient
from tests.support.endpoint import Endpoint, figures, until

POLL = "/v1/topics/{topic}/messages?group=billing&consumer=page&max=1024&visibility_s=43200"
#: How a page can have a browser send a GET without asking anybody.
WAYS = {
    "image": "<img src='{url}'>",
    "script": "<script src='{url}'></script>",
    "frame": "<iframe src='{url}'></iframe>",
    "fetch": "<script>fetch('{url}', {{mode: 'no-cors'}})</script>",
    "form": "<form id='f' action='{path}' target='into'>{fields}</form><iframe name='into'></iframe><script>f.submit()</script>",
}


@contextmanager
def page_with(html):
    """A web server of somebody else's; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture(scope="module")
def open_service(tmp_path_factory):
    """An endpoint without tokens."""
    with Endpoint(tmp_path_factory.mktemp("open") / "data") as made:
        yield made


def html_of(way, port, topic):
    url = f"http://localhost:{port}{POLL.format(topic=topic)}"
    path, _, query = url.partition("?")
    fields = "".join(f"<input name='{name}' value='{value}'>" for name, _, value in (p.partition("=") for p in query.split("&")))
    return f"<body>cats{WAYS[way].format(url=url, path=path, fields=fields)}</body>"


def polls(client):
    """Polls for messages so far, by status."""
    found = re.compile(r'escrow_http_requests_total\{.*operation="GET /v1/topics/\{topic\}/messages".*status="(\w+)"')
    matches = ((found.match(name), value) for name, value in figures(client).items())
    return Counter({match[1]: int(value) for match, value in matches if match and value})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])  # the same site, and another one
@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_page_takes_no_messages(chromium, open_service, way, host):
    topic = f"paid-{way}-{host}"
    with EdgeClient(open_service.port) as client, page_with(html_of(way, open_service.port, topic)) as port:
        client.send([{"group": "shop", "topic": topic, "text": str(number)} for number in range(3)])
        before = polls(client)
        page = chromium.new_page()
        page.goto(f"http://{host}:{port}/")
        until(lambda: polls(client) != before)  # the browser does not show the page's scripts what became of it
        page.close()
        assert polls(client) - before == {"4xx": 1}
        assert len(client.consume(topic, "billing")) == 3


def test_what_somebody_types_is_served(chromium, open_service):
    page = chromium.new_page()
    answer = page.goto(f"http://localhost:{open_service.port}/v1/operator/overview", timeout=PATIENCE_MS)
    assert answer is not None
    assert answer.status == 200
    page.close()
