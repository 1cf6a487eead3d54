"""What Escrow writes is for its user alone, whatever the umask was."""

from __future__ import annotations

import os

from escrow.cli import main
from tests.support.edge_client import EdgeClient
from tests.support.edge_world import SMALL
from tests.support.endpoint import Endpoint


def for_others(root):
    return [(oct(path.stat().st_mode & 0o777), path.name) for path in (root, *root.rglob("*")) if path.stat().st_mode & 0o077]


def test_store_logs_keys_and_backups(tmp_path):
    before = os.umask(0)
    try:
        data = tmp_path / "data"
        with Endpoint(data, *SMALL) as endpoint, EdgeClient(endpoint.port) as client:
            client.send([{"group": "g", "topic": "t", "text": "secret"}])
            client.consume("t")
            assert main(["store", "backup", str(data / "store"), str(tmp_path / "copy")]) == 0
            assert for_others(data) == []
            assert for_others(tmp_path / "copy") == []
        assert main(["store", "restore", str(tmp_path / "copy"), str(tmp_path / "again")]) == 0
        assert for_others(tmp_path / "again") == []
        assert os.umask(0) == 0, "a command leaves it as it was"
    finally:
        os.umask(before)
