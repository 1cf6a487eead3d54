"""Python's cycle collector in the processes where Spark runs our tasks.

What tasks make in great numbers (Kafka's messages, their headers) has no cycles: it goes when the last reference to it goes. The
collector would look through it again and again while a batch is in memory, which was a third of a release's processor time. And
after every task PySpark has the collector look through everything that was ever imported.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def no_collector() -> Iterator[None]:
    """No collections meanwhile; and what is there when this process is first here is never looked through again."""
    _freeze()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@cache
def _freeze() -> None:
    """Once. (Whether it was done cannot be asked: `gc.get_freeze_count` counts all that is frozen, 5 ms for each task.)"""
    gc.freeze()
