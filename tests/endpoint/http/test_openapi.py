"""The committed OpenAPI document: equal to what is served, valid by its own schema, and true: schemathesis plays it against the
running endpoint. No answer of 500 or above, and none that the document does not know."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from prometheus_client import CollectorRegistry
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from ingest.http import openapi
from ingest.http.routes import make_routes
from runtime.metrics import EdgeMetrics
from tests.support.edge_process import edge

DOCUMENT = Path(__file__).parents[3] / "docs" / "openapi.json"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_committed_document_is_the_served_one(regenerate_golden):
    made = openapi.document(make_routes(EdgeMetrics(CollectorRegistry(), lambda: iter(()))))
    if regenerate_golden:
        DOCUMENT.write_bytes(made)
    assert DOCUMENT.read_bytes() == made, "run this test with --regenerate-golden, and read the difference"


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    bounds = ("pollWaitMax=50ms", "requestTimeout=5s")
    with edge(tmp_path_factory.mktemp("openapi") / "data", *bounds) as (process, found):
        yield found
        assert process.poll() is None, "the endpoint has survived"


@schemathesis.serializer("application/msgpack")
def as_msgpack(_context, value):
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:  # a number that msgpack cannot spell
        return b"\xc1"


@schemathesis.deserializer("application/msgpack")
def from_msgpack(_context, response):
    return msgspec.msgpack.decode(response.content)


schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text()))


@schema.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_to_the_document(case, port):
    case.call_and_validate(base_url=f"http://127.0.0.1:{port}", checks=CHECKS)
