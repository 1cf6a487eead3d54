"""The running service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from escrow.api import Api
from escrow.errors import EscrowError, NotAllowed
from runtime.commands.checkup.finding import ANSWER_S, Finding, Level
from runtime.settings import Settings
from runtime.supervisor import STATE_FILE


def supervised(settings: Settings) -> dict[str, Any] | None:
    """What supervisor.json says of an Escrow that runs on this data directory; None where none does."""
    try:
        found = json.loads((settings.data_dir / STATE_FILE).read_text())
        os.kill(int(found["supervisor"]), 0)
    except PermissionError:  # it runs as another user
        pass
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def check_service(running: dict[str, Any] | None) -> Iterator[Finding]:
    if running is None:
        yield Finding(Level.OK, "service", "is not running on this data directory: start it with escrow run")
        return
    url = (running.get("edge") or {}).get("url", "")
    yield Finding(Level.OK, "service", f"runs (supervisor {running['supervisor']}){f', edge on {url}' if url else ''}")
    for name, part in running.items():
        if isinstance(part, dict) and part.get("starts", 0) > 1:
            yield Finding(
                Level.WARN, name, f"was started {part['starts']} times: it exited in between", f"look into logs/{name}.log"
            )
    if url.startswith("http://"):
        yield _readiness(url)
        yield from _judgement(url)


def _judgement(url: str) -> Iterator[Finding]:
    """What the service itself finds wrong: the same as on the console's overview and in escrow top."""
    try:
        with Api(url, token=os.environ.get("ESCROW_TOKEN") or None, timeout_s=ANSWER_S, retry_for_s=0.0) as api:
            found = api.overview()["findings"]
    except NotAllowed:
        yield Finding(Level.WARN, "health", "was not asked for: it needs an operator's token", "set ESCROW_TOKEN, and run again")
        return
    except EscrowError:
        return  # readiness tells of it; in Kafka mode there is no overview
    if not found:
        yield Finding(Level.OK, "health", "nothing is wrong: groups, discards, conflicts, consumers")
    for each in found:
        level = Level.FAIL if each["severity"] == "bad" else Level.WARN
        says = f"{each['subject']}: {each['text']}" + (f"; {each['cause']}" if each["cause"] else "")
        yield Finding(level, "health", says, f"{each['remedy']}: {each['command']}" if each["remedy"] else each["command"])


def _readiness(url: str) -> Finding:
    try:
        with Api(url, timeout_s=ANSWER_S, retry_for_s=0.0) as api:
            job = api.ready()["job"]
    except EscrowError as error:
        return Finding(Level.FAIL, "service", f"{url}: {error}", "look into logs/edge.log")
    if job["state"] == "no_room":
        return Finding(
            Level.FAIL,
            "job",
            "waits for disk space: nothing is settled meanwhile",
            "free some space: the job continues automatically",
        )
    if job["state"] != "running":
        return Finding(
            Level.WARN,
            "job",
            f"is {job['state']}: nothing is settled meanwhile",
            "it needs half a minute to start; then logs/job.log tells",
        )
    return Finding(Level.OK, "job", f"runs; {job['halves_behind']:,} halves and {job['ops_behind']:,} ops behind")
