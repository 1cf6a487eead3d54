"""A service whose processes may have 1,024 open files and cannot raise that: many ordinary topics, then one greedy request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = 1024
ORDINARY, GREEDY = 200, 700

#: The edge and the job are its children and have its limit.
SERVE = """
import json, os, resource, sys
from pathlib import Path
limit, ordinary, greedy = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from tests.support.edge_client import EdgeClient
from tests.support.live import live

def children():
    return sorted(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))

def settle():
    while edge.call("GET", "/v1/status")["job"]["ops_behind"]:
        pass

def message(topic):
    return {"group": "shop", "topic": topic, "text": "x"}

with live(Path(sys.argv[1]), "queuesPerTopic=4") as escrow, EdgeClient(escrow.port) as edge:
    pids = children()
    for number in range(ordinary):
        edge.send([message(f"tenant-{number}") for _ in range(4)])
    settle()
    edge.send([message(f"amp{number}") for number in range(greedy)])
    settle()
    for number in range(ordinary):
        edge.send([message(f"tenant-{number}") for _ in range(4)])
    settle()
    topics = edge.call("GET", "/v1/operator/topics")["topics"]
    print(json.dumps({
        "messages": {each["topic"]: each["messages"] for each in topics},
        "lived": len(pids) == 2 and children() == pids,
        "descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids],
    }))
"""


def test_many_topics_and_a_greedy_request_under_1024_descriptors(tmp_path: Path) -> None:
    sizes = [str(number) for number in (LIMIT, ORDINARY, GREEDY)]
    command = [sys.executable, "-c", SERVE, str(tmp_path / "data"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    expected = {f"tenant-{number}": 8 for number in range(ORDINARY)} | {f"amp{number}": 1 for number in range(GREEDY)}
    assert said["messages"] == expected
    assert said["lived"]
    assert max(said["descriptors"]) < LIMIT // 2
    files = [path for path in (tmp_path / "data").glob("store/transaction/generation-*/topics/*/*/*") if path.is_file()]
    assert len(files) == ORDINARY * 4 + GREEDY
    assert sum(path.stat().st_blocks * 512 for path in files) <= len(files) * 4096
