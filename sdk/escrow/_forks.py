"""What was made before a fork is of no use after it: sockets and locks belong to the parent's threads."""

from __future__ import annotations

import os
from typing import Final

from escrow.errors import Closed


class _Process:
    """Changes its number with every fork. (To ask `getpid` for each message would be a system call each.)"""

    number = 0

    def forked(self) -> None:
        self.number += 1


_this: Final = _Process()
os.register_at_fork(after_in_child=_this.forked)


class Home:
    """The process that something is made in."""

    __slots__ = ("_number", "_pid")

    def __init__(self) -> None:
        self._number, self._pid = _this.number, os.getpid()

    @property
    def is_left(self) -> bool:
        """This is a forked child of it."""
        return self._number != _this.number

    def refuse_elsewhere(self) -> None:
        if self._number != _this.number:
            raise Closed(f"made in process {self._pid} and used in {os.getpid()}: make one after the fork")
