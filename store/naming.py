"""Names of topics and groups: which are legal, and which Escrow keeps for itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from store.errors import IllegalName

DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "%SYS%"
LOST_PREFIX: Final = "%lost-"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARD_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
RESERVED_TOPICS: Final = frozenset({HALF_TOPIC, OP_TOPIC, DISCARD_TOPIC})
NAME_MAX_BYTES: Final = 127
_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%|.")


@lru_cache(maxsize=4096)
def check_name(name: str, what: str) -> str:
    """A topic or group name that may be used, or IllegalName saying why not."""
    if not name:
        raise IllegalName(f"{what}: is empty; give it a name")
    if not _NAME_CHARACTERS.issuperset(name):
        raise IllegalName(f"{what}: {name[:40]!r} has characters other than letters, digits and _ - % | .")
    if len(name) > NAME_MAX_BYTES:
        raise IllegalName(f"{what}: {name[:40]!r}… is longer than {NAME_MAX_BYTES} bytes")
    if name in (".", ".."):
        raise IllegalName(f"{what}: {name!r} is not a name")
    if name.startswith(LOST_PREFIX):
        raise IllegalName(f"{what}: {name[:40]!r} is Escrow's own: names must not begin with {LOST_PREFIX}")
    if what == "topic" and name in RESERVED_TOPICS:
        raise IllegalName(f"topic: {name} is Escrow's own; producers may not send to it")
    return name
