"""Ends: to the op topic, answered when this endpoint has read its own record back. The order of the partition decides."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from ingest.capabilities import OUTCOMES, EndAnswer, EndRequest, answer_of
from ingest.errors import BadId, InvalidRequest, KafkaUnreachable
from ingest.kafka.ended.follower import OpFollower
from ingest.kafka.records.places import Place
from ingest.kafka.records.sealing import PlaceSealer
from ingest.kafka.writer import Record, Writer
from sinks.kafka.contract import op_headers
from store.records import OpKind, Via
from store.tables.ends import Answer, Verdict, judge

REMARK_MAX: Final = 1024


class Said(NamedTuple):
    """An op that is to be written; `record` None: nothing need be written, an UNKNOWN that tells nothing."""

    place: Place
    kind: OpKind
    record: Record | None


class Ending:
    """Lives in the event loop."""

    def __init__(
        self, writer: Writer, follower: OpFollower, sealer: PlaceSealer, op_topic: str, *, timeout_s: float
    ) -> None:  # fmt: skip
        self._writer, self._follower, self._sealer = writer, follower, sealer
        self._op_topic, self._timeout_s = op_topic, timeout_s
        self.count = 0
        self.answers: Counter[str] = Counter()

    async def end(self, ends: Sequence[EndRequest]) -> list[EndAnswer]:
        """An answer for each, in order. Final: what the op partition says at the place of this end."""
        opened = [self._to_op(end) for end in ends]
        answers = iter(await self.say([each for each in opened if not isinstance(each, EndAnswer)]))
        told = [each if isinstance(each, EndAnswer) else answer_of(next(answers)) for each in opened]
        self.answers.update(answer.verdict for answer in told)
        self.count += len(told)
        return told

    def _to_op(self, end: EndRequest) -> Said | EndAnswer:
        kind = OUTCOMES.get(end.outcome)
        if kind is None:
            raise InvalidRequest(f"outcome: {end.outcome!r} is none of {', '.join(OUTCOMES)}")
        try:
            place = self._sealer.open(end.id, end.group)
        except BadId as error:
            return EndAnswer(Verdict.REFUSED.value, f"unknown id, or wrong group: {error}")
        if kind is OpKind.UNKNOWN and not end.from_check and not end.remark:
            return Said(place, kind, None)
        via = Via.CHECK if end.from_check else Via.PRODUCER
        return self.op(place, kind, end.group, via=via, remark=end.remark, id=end.id)

    def op(self, place: Place, kind: OpKind, group: str | None, *, via: Via, remark: str, id: str = "") -> Said:
        headers = op_headers(kind, place.half_offset, group, via=via, remark=remark[:REMARK_MAX], id=id)
        return Said(place, kind, Record(self._op_topic, b"", None, headers, place.partition))

    async def say(self, ops: Sequence[Said]) -> list[Answer]:
        """1 what has ended already is answered from what was read · 2 the others are written · 3 and read back."""
        for op in ops:
            self._follower.require_known(op.place)
        answers = [judge(op.kind, self._follower.end_of(op.place)) for op in ops]  # 1
        open_ = {
            number: op.record
            for number, (answer, op) in enumerate(zip(answers, ops, strict=True))
            if answer.verdict is Verdict.ACCEPTED and op.record is not None
        }
        if open_:
            for number, answer in zip(open_, await self._write(list(open_.values())), strict=True):
                answers[number] = answer
        return answers

    async def _write(self, records: Sequence[Record]) -> list[Answer]:
        expected = [self._follower.expect() for _ in records]
        try:
            keyed = [record._replace(key=key) for record, (key, _) in zip(records, expected, strict=True)]
            async with asyncio.timeout(self._timeout_s):
                self._follower.read_to(await self._writer.write(keyed))  # 2
                return [await future for _, future in expected]  # 3
        except TimeoutError:
            reason = self._follower.trouble or "the op partition cannot be read up to it: a stranger's transaction is open there"
            raise KafkaUnreachable(f"it is in Kafka and its answer is not known yet ({reason}): say it again") from None
        finally:
            for _, future in expected:
                future.cancel()
