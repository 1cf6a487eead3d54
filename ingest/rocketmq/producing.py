"""What producers call: halves, ordinary messages, ends."""

from __future__ import annotations

from typing import Final

from ingest.capabilities import Capabilities, EndRequest
from ingest.errors import BadId
from ingest.rocketmq import codes, wire
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.calls import Caller
from ingest.rocketmq.clients import Clients
from ingest.rocketmq.codes import OK, Refused
from store.naming import check_name
from store.properties import UNIQ_KEY

_OUTCOMES: Final = {pb.COMMIT: "commit", pb.ROLLBACK: "rollback", pb.TRANSACTION_RESOLUTION_UNSPECIFIED: "unknown"}


class Producing:
    """SendMessage and EndTransaction."""

    def __init__(self, edge: Capabilities, clients: Clients) -> None:
        self._edge, self._clients = edge, clients

    async def send_message(self, caller: Caller, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        given, most_bytes = list(request.messages), self._edge.settings.max_body_bytes
        kind = wire.type_of(given)
        messages = [wire.to_message(message, most_bytes) for message in given]
        groups = {message.group for message in messages}
        for group in groups:
            check_name(group, "topic")
        for group, topic in {(message.group, message.topic) for message in messages}:
            caller.principal.require_send(group, topic)
        self._edge.offers.naming.admit(caller.principal, groups, {message.topic for message in messages})
        if kind == pb.TRANSACTION:
            stored = await self._edge.halves.store_halves(messages)
            for group in groups:
                self._clients.sent_half(caller.client, group)
        else:
            stored = [("", offset) for _, offset in await self._edge.messages.send(messages)]
        entries = [
            pb.SendResultEntry(status=OK, message_id=message.properties[UNIQ_KEY], transaction_id=id, offset=offset)
            for message, (id, offset) in zip(messages, stored, strict=True)
        ]
        return pb.SendMessageResponse(status=OK, entries=entries)

    async def end_transaction(self, caller: Caller, request: pb.EndTransactionRequest) -> pb.EndTransactionResponse:
        """The id says whose transaction it is; the topic that the client adds cannot change that."""
        id, outcome = request.transaction_id, _OUTCOMES.get(request.resolution)
        if outcome is None:
            raise Refused(pb.BAD_REQUEST, f"resolution: {request.resolution} is not valid; use COMMIT, ROLLBACK or unspecified")
        try:
            group = self._group_of(id)
        except BadId:  # or one that a plug-in made
            group = wire.name_of(request.topic)
        caller.principal.require_produce(group)
        from_check = request.source == pb.SOURCE_SERVER_CHECK
        (answer,) = await self._edge.ends.end([EndRequest(group, id, outcome, from_check)])
        self._clients.heard(caller.client, id)
        return pb.EndTransactionResponse(status=codes.of_end(answer))

    def _group_of(self, id: str) -> str:
        issued = self._edge.offers.issued
        assert issued is not None, "this method is mounted where it is there"
        return issued.group_of(id)
