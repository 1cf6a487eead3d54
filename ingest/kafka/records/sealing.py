"""Transaction ids in Kafka mode: the place of a half, sealed together with its producer group.

id = <partition> "-" <half_offset> "-" <seal>
seal = base64url without padding of 16 bytes: BLAKE2b, keyed as ids of the embedded store are (ingest.ids), over
       "escrow kafka id" NUL half topic NUL partition "-" half_offset NUL group        (UTF-8)

Nothing of it lies in a file but the key, so the same half has the same id at every endpoint and on every machine that has the key.
The group is not in the id: who names another one, or none, cannot open it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final

from ingest.errors import BadId, KeysUnusable
from ingest.ids import keyed
from ingest.kafka.records.places import HALF_OFFSET_MAX, PARTITION_MAX, Place
from sinks.kafka.contract import place_of

_ID: Final = re.compile(r"(0|[1-9][0-9]{0,4})-(0|[1-9][0-9]{0,14})-[A-Za-z0-9_-]{22}", re.ASCII)
_SEAL_CHARACTERS: Final = 22
_TO_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")
_NOT_OURS: Final = "id: not an id of ours (partition-offset-seal); use it exactly as it was answered"


class PlaceSealer:
    """Seals and opens ids of one half topic. The first key seals, every key opens."""

    def __init__(self, keys: Sequence[bytes], half_topic: str) -> None:
        if not keys:
            raise KeysUnusable("there is no key to seal ids with")
        self._topic = half_topic
        self._keyed = [keyed(key) for key in keys]
        self._newest, self._prefix = self._keyed[0], f"escrow kafka id\0{half_topic}\0".encode()

    def seal(self, place: Place, group: str) -> str:
        return self._text(self._keyed[0], place, group)

    def open(self, text: str, group: str) -> Place:
        """The place; BadId unless this id was given to this group."""
        place = place_in(text)
        if not self.is_good(text, place, group):
            raise BadId("id: was not given to this group, or its seal is broken, or the key that sealed it is not here")
        return place

    def is_good(self, text: str, place: Place, group: str) -> bool:
        """All keys are tried, so that the answer takes as long for every id that is not good."""
        given = text.encode("utf-8", "surrogatepass")
        return max([hmac.compare_digest(self._text(each, place, group).encode(), given) for each in self._keyed])

    def seals(self, id: bytes, name: bytes, group: bytes) -> bool:
        """Whether the newest key gave this id to the group, for the half of this name (`partition-half_offset`). False may mean
        another key. A good seal tells that name and group are as Escrow writes them. For following ops: it takes a microsecond."""
        seal = self._newest.copy()
        seal.update(b"%b%b\0%b" % (self._prefix, name, group))
        good = b2a_base64(seal.digest(), newline=False).translate(_TO_URLSAFE)[:_SEAL_CHARACTERS]
        return hmac.compare_digest(id, b"%b-%b" % (name, good))

    def _text(self, key: hashlib.blake2b, place: Place, group: str) -> str:
        name = place_of(*place)
        seal = key.copy()
        seal.update(f"escrow kafka id\0{self._topic}\0{name}\0{group}".encode("utf-8", "surrogatepass"))
        return f"{name}-{urlsafe_b64encode(seal.digest()).rstrip(b'=').decode()}"


def place_in(text: str) -> Place:
    """The place that an id names, whoever made it; BadId where it names none."""
    found = _ID.fullmatch(text)
    if found is None:
        raise BadId(_NOT_OURS)
    place = Place(int(found[1]), int(found[2]))
    if place.partition > PARTITION_MAX or place.half_offset > HALF_OFFSET_MAX:
        raise BadId(_NOT_OURS)
    return place
