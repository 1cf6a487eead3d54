"""The short form of `make tenants`: the edge as a process, a stand-in for the job."""

from __future__ import annotations

import os
import random

from store.inspect.verify.store import verify
from tests.campaigns.tenants.campaign import Tenants, judge, report
from tests.support.endpoint import Endpoint, quiet_port
from tests.support.standin import Standin

FLAGS = (
    "commitLogSegmentSize=64MiB", "maxBodySize=4MiB", "logQueueEntriesPerFile=100000", "tokenRequestsMax=200", "tokenBytesMax=4MiB",
)  # fmt: skip


def test_a_hostile_tenant_beside_a_good_one(tmp_path):
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    print(f"SEED={seed}")
    data, grpc_port = tmp_path / "data", quiet_port()
    tenants = Tenants(data, seed)
    with Endpoint(data, *FLAGS, f"grpcPort={grpc_port}") as endpoint, Standin(data, *FLAGS):
        outcome = tenants.play(endpoint.port, grpc_port, 2, 15)
        report(outcome)
        assert endpoint.process.poll() is None
        assert endpoint.stop() == (0, "")
    judge(outcome)
    assert verify(data / "store").problems == []
