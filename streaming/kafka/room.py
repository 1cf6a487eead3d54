"""No room on the driver's disk: shards that need some wait, and go on by themselves. The redo topic has what they did not apply."""

from __future__ import annotations

import threading

from streaming.settlement.disk_room import Room


class RoomForShards:
    """One `Room` for all shards. It is found again when none of them lacks it any more."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._lacking: set[int] = set()
        self._lock = threading.Lock()

    @property
    def lacks(self) -> bool:
        return bool(self._lacking)

    def wait(self, shard: int, reason: object) -> bool:
        """This shard finds none: wait a moment, then try again; False when the job shall stop."""
        with self._lock:
            self._lacking.add(shard)
        return self._room.wait(reason)

    def found(self, shard: int) -> None:
        """What this shard tried has succeeded."""
        with self._lock:
            if shard not in self._lacking:
                return
            self._lacking.discard(shard)
            if not self._lacking:
                self._room.found()
