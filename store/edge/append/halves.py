"""Appending halves: a half whose dedup key is known is not stored again, nor is a member whose ordinal is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any
from zlib import crc32

from store.edge.append.log_writer import Appended, LogWriter, Tails
from store.edge.append.members import Admission, Members
from store.edge.append.recent import RecentHalves
from store.edge.append.unflushed import Unflushed
from store.edge.files import EdgeFiles, EdgeState
from store.edge.pending_counts import PendingByGroup
from store.errors import DuplicateKey, InvalidRecord
from store.messages import AlikeMessages, Message, bodies_of, dedup_keys_of
from store.records import State
from store.tables import frames
from store.tables.dedup import Known, digest_of


class HalfAppender:
    """Call it under the append lock, after `GroupCommit.check`."""

    def __init__(
        self,
        files: EdgeFiles,
        state: EdgeState,
        writer: LogWriter,
        *,
        unflushed: Unflushed,
        recent: RecentHalves,
        pending: PendingByGroup,
        members: Members,
    ) -> None:
        self._files, self._log, self._dedup, self._state, self._writer = files, files.log, files.dedup, state, writer
        self._unflushed, self._recent, self._pending, self._members = unflushed, recent, pending, members

    def append(self, messages: Sequence[Message], heads: Any, tails: Tails, now_ms: int) -> Appended:
        plain = type(messages) is AlikeMessages or bool((heads["sys_flag"] == frames.SYS_FLAG_PREPARED).all())
        admission = None if plain else Admission(self._members, messages, heads, tails)
        offsets, keys = self._offsets_and_keys(messages, heads, now_ms // 1000, admission)
        if not isinstance(offsets, range):
            # Several messages of this batch may lead to one new half: the first of them is stored.
            half_end = self._state.half_end
            firsts = {offset: number for number, offset in reversed(list(enumerate(offsets))) if offset >= half_end}
            fresh = sorted(firsts.values())
            heads, tails = heads[fresh], [[column[number] for number in fresh] for column in tails]
        if keys:  # room also for those that wait for their flush
            self._dedup.ensure(len(self._unflushed.keys) + len(keys), now_ms // 1000)
        if not plain and len(heads):
            self._files.require_transactions()
        ticket = self._append_fresh(heads, tails, plain=plain) if len(heads) else self._log.end
        marks: dict[int, int] = {}
        if admission is not None:
            marks = {member.half_offset: int(State.MEMBER) for _, _, member in admission.fresh}
            for head, ordinal, member in admission.fresh:
                self._members.add(head, ordinal, member)
        self._unflushed.add(ticket, marks, keys)
        return Appended(offsets, ticket)

    def _append_fresh(self, heads: Any, tails: Tails, *, plain: bool) -> int:
        first = self._state.half_end
        placed = self._writer.halves(heads, tails)
        own = heads["group_no"] if plain else heads["group_no"][heads["sys_flag"] & frames.SYS_FLAG_MEMBER == 0]
        self._pending.halves(own.tolist())
        self._recent.add(first, placed, heads)
        return placed.end

    def _offsets_and_keys(
        self, messages: Sequence[Message], heads: Any, now_s: int, admission: Admission | None
    ) -> tuple[Sequence[int], dict[bytes, Known]]:
        """(half_offset of each message, keys to remember). An offset before half_end is that of an earlier half
        with the same dedup key, or with the same ordinal in its transaction."""
        following, given = self._state.half_end, dedup_keys_of(messages)
        keys: dict[bytes, Known] = {}
        if not any(given) and admission is None:
            return range(following, following + len(messages)), keys
        group_nos = heads["group_no"].tolist()
        digests = [digest_of(group_no, key) if key else b"" for key, group_no in zip(given, group_nos, strict=True)]
        earlier = self._unflushed.known(digests, now_s)
        crcs = [crc32(body) for body in bodies_of(messages)]
        if not earlier and all(digests) and admission is None:  # mostly
            stop = following + len(messages)
            keys = dict(zip(digests, map(Known, range(following, stop), repeat(now_s), crcs), strict=True))
            if len(keys) == len(messages):
                return range(following, stop), keys
            keys = {}
        offsets: list[int] = []
        for number, (digest, body_crc) in enumerate(zip(digests, crcs, strict=True)):
            known = keys.get(digest) or earlier.get(digest)
            if admission is not None and messages[number].member is not None:
                try:
                    offset = admission.offset_of(number, offsets, following)
                except InvalidRecord as error:
                    error.number = number
                    raise
                offsets.append(offset)
                following += offset == following
                continue
            if known is None:
                if digest:
                    keys[digest] = Known(following, now_s, body_crc)
            elif known.body_crc != body_crc:
                raise _duplicate(given[number], number)
            offsets.append(following if known is None else known.half_offset)
            following += known is None
        return offsets, keys


def _duplicate(key: str, number: int) -> DuplicateKey:
    error = DuplicateKey(f"dedup_key: {key!r} was used for another body within the window; use one key for one message")
    error.number = number
    return error
