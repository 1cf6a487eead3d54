"""Flushes that the kernel does (Linux AIO) while the event loop goes on. A thread could do the same, but in Python it has to fight
for the interpreter's lock twice a flush."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

with suppress(ImportError):  # not everywhere
    from caio import linux_aio

FLUSHES_MAX: Final = 4


class KernelFlusher:
    """A store.io.disk.Flusher, used by one thread. `fileno` becomes readable when a flush is through; `collect` then
    tells its callers."""

    def __init__(self) -> None:
        self._context = linux_aio.Context(FLUSHES_MAX)
        self.fileno: int = self._context.fileno

    def begin(self, fd: int, done: Callable[[int], None]) -> bool:
        operation = linux_aio.Operation.fdsync(fd)
        operation.set_callback(partial(self._through, done))
        try:
            return self._context.submit(operation) == 1
        except Exception:  # the binding has one for each reason why io_submit may refuse
            return False

    @staticmethod
    def _through(done: Callable[[int], None], result: int) -> None:
        done(-result % (1 << 64))  # the binding gives it without its sign

    def collect(self) -> None:
        """Tell of the flushes that are through."""
        with suppress(BlockingIOError):  # woken for nothing
            self._context.poll()
        self._context.process_events(FLUSHES_MAX)


def make_flusher() -> KernelFlusher | None:
    """None where the system has no AIO, or none left (fs.aio-max-nr): a thread has to do."""
    try:
        return KernelFlusher()
    except Exception:  # the binding is not here, or has one for each reason why io_setup may refuse
        return None
