"""Looks for the places of check requests beside the shards' work: slow brokers must not hold a shard's lock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from sinks.kafka import asking
from sinks.kafka.task import Requested, Target
from store.arrays import Array

LOG: Final = logging.getLogger("escrow.kafka")
THREADS: Final = 8

#: Finds requests; asking.PLACED.
Look = Callable[[Target, Requested], Array]
#: Takes what was found.
Then = Callable[[Array], None]


class Locating:
    """`look` runs in a thread; then `then` is called there, also if nothing was found."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._pool = ThreadPoolExecutor(THREADS, "check-requests")

    def __call__(self, target: Target, requested: Requested, then: Then) -> None:
        self._pool.submit(self._locate, target, requested, then)

    def _locate(self, target: Target, requested: Requested, then: Then) -> None:
        try:
            found = self._look(target, requested)
        except Exception as error:  # an executor died, or Spark is stopping: these requests are not counted
            LOG.warning("shard %d: its check requests were not found: %s", target.partition, str(error).strip().splitlines()[-1:])
            found = np.empty(0, asking.PLACED)
        then(found)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def locate_at_once(target: Target, requested: Requested, then: Then) -> None:
    """In the caller's thread."""
    then(asking.places_of(target, requested))
