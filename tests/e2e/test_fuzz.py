"""The short form of `make fuzz`, and that it would notice."""

from __future__ import annotations

import json
import os
import random

import pytest

from ingest.http.routes import make_routes
from tests.campaigns.fuzz import hostile
from tests.campaigns.fuzz.campaign import Campaign, Wrong, judge, report
from tests.campaigns.fuzz.hostile import Pool

REQUESTS = 5_000


def test_hostile_requests(tmp_path):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    campaign = Campaign(tmp_path / "data", seed)
    outcome = campaign.run(REQUESTS)
    report(outcome)
    assert outcome.requests >= REQUESTS
    assert set(outcome.routes) == set(hostile.ROUTES)
    assert {200, 400, 401, 404, 405, 413, 415} <= set(outcome.answers)
    assert outcome.stored > 0


def test_every_route_is_fuzzed():
    routes = make_routes(object())  # type: ignore[arg-type]
    assert set(hostile.ROUTES) == {f"{route.method} {route.path}" for route in routes}
    assert hostile.HEAVIER.keys() <= hostile.ROUTES.keys()


def test_a_seed_makes_the_same_requests_again():
    pool = Pool("escrow_aaaaaaaa_" + "b" * 43, ["i" * 58], ["1-2-3-4-5"], ["0-0"])
    for number in range(300):
        assert hostile.make(7, number, pool) == hostile.make(7, number, pool)
    assert hostile.make(7, 1, pool) != hostile.make(8, 1, pool)
    kinds = {hostile.make(7, number, pool).kind for number in range(3000)}
    assert len(kinds) == 15, kinds


PROBLEM = {"status": 400, "code": "invalid", "title": "Bad Request", "detail": "x"}


@pytest.mark.parametrize(
    ("status", "media", "content"),
    [
        (500, "application/problem+json", {**PROBLEM, "status": 500}),
        (503, "application/problem+json", {**PROBLEM, "status": 503}),
        (400, "text/plain", PROBLEM),
        (400, "application/problem+json", {**PROBLEM, "code": ""}),
        (404, "application/problem+json", PROBLEM),
        (429, "application/problem+json", {**PROBLEM, "status": 429}),
        (200, "text/html", {}),
        (101, "", {}),
    ],
)
def test_the_judge_knows_a_wrong_answer(status, media, content):
    with pytest.raises(Wrong):
        judge(status, {b"content-type": media.encode()}, json.dumps(content).encode(), "GET")
    judge(400, {b"content-type": b"application/problem+json"}, json.dumps(PROBLEM).encode(), "GET")
