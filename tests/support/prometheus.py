"""A Prometheus of our own, over conf/prometheus, and what it answers."""

from __future__ import annotations

import json
import math
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.endpoint import quiet_port
from tests.support.tools import require_tool

CONF = Path(__file__).parents[2] / "conf" / "prometheus"
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Prometheus:
    port: int

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """What a query gives now, without what is not a number."""
        found = [float(each["value"][1]) for each in self.get("query", query=expr)["result"]]
        return [value for value in found if not math.isnan(value)]

    def until_values(self, expr: str) -> list[float]:
        give_up_s = time.monotonic() + PATIENCE_S
        while not (found := self.values(expr)):
            assert time.monotonic() < give_up_s, f"no data: {expr}"
            time.sleep(0.25)
        return found


def configuration(targets: dict[str, int]) -> str:
    """conf/prometheus/prometheus.yml with these ports, every second."""
    made = yaml.safe_load((CONF / "prometheus.yml").read_text())
    made["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    made["rule_files"] = [str(CONF / file) for file in made["rule_files"]]
    for scraped in made["scrape_configs"]:
        for static in scraped["static_configs"]:
            static["targets"] = [f"127.0.0.1:{targets[target.split(':')[1]]}" for target in static["targets"]]
    return yaml.safe_dump(made)


@contextmanager
def scraping(place: Path, targets: dict[str, int]) -> Iterator[Prometheus]:
    """Debian's Prometheus over `targets` (the port that the configuration names → the real one), killed at the end."""
    program, port = require_tool("prometheus"), quiet_port()
    place.mkdir()
    (place / "prometheus.yml").write_text(configuration(targets))
    words = [
        program,
        f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (place / "log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, cwd=place)
    try:
        _until_ready(port, process, place / "log")
        yield Prometheus(port)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_ready(port: int, process: subprocess.Popen[Any], log: Path) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < give_up_s, log.read_text()
            time.sleep(0.1)
