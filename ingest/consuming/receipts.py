"""Receipts: what a consumer sends back to acknowledge a message, or to hold it longer.

A receipt is `group_no-queue_key-queue_offset-attempt-visible_at_ms` in hexadecimal digits; in a restored store `-` and the tag of
its incarnation follow; then `-` and the seal, 16 digits: a keyed BLAKE2b of what stands before it (the keys of transaction ids).

It counts as long as it is the last one of its entry: a later hand-out or another visibility time makes it stale. It is made of what
the journal keeps, so it is good after a restart too, and after a restore if the backup holds its message. The seal binds it to its
consumer group: it cannot be forged for a message that was not handed out. One without a seal, or with a wrong one, is stale.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ingest.errors import InvalidRequest

SEAL_BYTES: Final = 8
_NUMBERS: Final = "-".join(["([0-9a-f]{1,16})"] * 5)
_FORM: Final = re.compile(f"(?P<said>{_NUMBERS}(?:-([0-9a-f]{{8}}))?)(?:-(?P<seal>[0-9a-f]{{16}}))?", re.ASCII)


class Receipt(NamedTuple):
    group_no: int
    queue_key: int
    queue_offset: int
    attempt: int
    visible_at_ms: int
    tag: str = ""

    def said(self) -> str:
        """All but the seal."""
        return f"{self[0]:x}-{self[1]:x}-{self[2]:x}-{self[3]:x}-{self[4]:x}" + (f"-{self.tag}" if self.tag else "")


class ReceiptSealer:
    """The first key seals, every key opens."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keyed = [
            hashlib.blake2b(key=hashlib.sha256(b"escrow receipt seal\0" + key).digest(), digest_size=SEAL_BYTES) for key in keys
        ]

    def seal(self, receipt: Receipt) -> str:
        said = receipt.said()
        return f"{said}-{_seal(self._keyed[0], said)}"

    def open(self, text: str, field_name: str) -> tuple[Receipt, bool]:
        """What it says, and whether it was sealed here; InvalidRequest if it is not a receipt."""
        found = _FORM.fullmatch(text)
        if found is None:
            raise InvalidRequest(f"{field_name}: {text[:40]!r} is not a receipt: send back the one that came with the message")
        group_no, queue_key, queue_offset, attempt, visible_at_ms = (int(found[part], 16) for part in range(2, 7))
        receipt = Receipt(group_no, queue_key, queue_offset, attempt, visible_at_ms, found[7] or "")
        said, seal = found["said"], found["seal"] or ""
        return receipt, any(hmac.compare_digest(_seal(keyed, said), seal) for keyed in self._keyed)


def _seal(keyed: hashlib.blake2b, said: str) -> str:
    made = keyed.copy()
    made.update(said.encode("ascii"))
    return made.hexdigest()
