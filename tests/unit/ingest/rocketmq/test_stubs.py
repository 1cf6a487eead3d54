"""messaging_pb2.py is what protoc makes of messaging.proto now. To make it anew: run this with --regenerate-golden."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
PROTO = "ingest/rocketmq/messaging.proto"
MADE = ("ingest/rocketmq/messaging_pb2.py", "ingest/rocketmq/messaging_pb2.pyi")


def test_the_committed_stubs_are_what_protoc_makes_of_the_declarations(tmp_path, regenerate_golden):
    out = ROOT if regenerate_golden else tmp_path
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={out}", f"--pyi_out={out}", PROTO]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for name in MADE:
        assert (out / name).read_text() == (ROOT / name).read_text(), f"{name} is not what protoc makes: --regenerate-golden"
