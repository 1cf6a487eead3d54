"""Groups that streams of producers name, and what of that is bounded.

A stream has a courier for each group that it names, once that group has sent anything: a group without halves gets no requests.
Until then the name alone is kept, and looked for among the store's groups (`look`): invented names cost their letters only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.codes import Refused

GROUPS_PER_STREAM_MAX: Final = 1024
GROUPS_PER_SIGNER_MAX: Final = 65_536


class Stream(Protocol):
    """What is needed of a stream here."""

    signer: str
    named: set[str]

    def begin(self, group: str) -> None: ...


class Named:
    """For one event loop. `known_groups` gives the store's groups, in the order of their making."""

    def __init__(self, known_groups: Callable[[], Sequence[str]]) -> None:
        self._known_groups, self._looked_at = known_groups, 0
        self._of_signer: Counter[str] = Counter()
        self._awaited: dict[str, set[Stream]] = {}

    @property
    def awaited(self) -> int:
        """Names of groups that do not exist so far."""
        return len(self._awaited)

    def check(self, stream: Stream, groups: Iterable[str]) -> None:
        """Refused where these would be more than a stream, or all streams of its signer, may name."""
        new = len(set(groups) - stream.named)
        if len(stream.named) + new > GROUPS_PER_STREAM_MAX:
            text = f"publishing.topics: a client names {GROUPS_PER_STREAM_MAX} topics at most: use several clients"
            raise Refused(pb.BAD_REQUEST, text)
        if self._of_signer[stream.signer] + new > GROUPS_PER_SIGNER_MAX:
            text = f"publishing.topics: all clients of {stream.signer} name more than {GROUPS_PER_SIGNER_MAX} topics: name fewer"
            raise Refused(pb.TOO_MANY_REQUESTS, text)

    def add(self, stream: Stream, group: str, *, is_known: bool) -> None:
        if group in stream.named:
            return
        stream.named.add(group)
        self._of_signer[stream.signer] += 1
        if is_known:
            stream.begin(group)
        else:
            self._awaited.setdefault(group, set()).add(stream)

    def drop(self, stream: Stream) -> None:
        """It has ended."""
        self._of_signer[stream.signer] -= len(stream.named)
        if not self._of_signer[stream.signer]:
            del self._of_signer[stream.signer]
        for group in stream.named & self._awaited.keys():
            self._awaited[group].discard(stream)
            if not self._awaited[group]:
                del self._awaited[group]
        stream.named.clear()

    def look(self) -> None:
        """Groups that were made since the last look: those that wait for them begin."""
        groups = self._known_groups()
        made, self._looked_at = groups[self._looked_at :], len(groups)
        for group in made:
            for stream in self._awaited.pop(group, ()):
                stream.begin(group)
