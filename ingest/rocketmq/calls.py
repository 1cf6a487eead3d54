"""What surrounds every call of the gRPC service: the caller is identified, the message received, its token keeps to its share,
denials go to the audit, the call is measured by its method and its code (escrow_grpc_requests).

Every answer carries a status; gRPC's own status stays OK, or the clients would not show the text. The caller is known before the
call's message is received (`ingest.rocketmq.receiving`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from ingest.auth.access import Principal
from ingest.auth.access_keys import Signatures
from ingest.capabilities import Capabilities
from ingest.errors import Forbidden, Unauthorized
from ingest.parts import MEMBER_MAX_CHARACTERS
from ingest.rocketmq import codes
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.clients import Client, Clients
from ingest.rocketmq.codes import Refused
from ingest.rocketmq.receiving import Receiving

Observe = Callable[[str, str, float], None]
#: A method that answers one message with one.
Unary = Callable[["Caller", Any], Awaitable[Any]]


@dataclass(slots=True)
class Caller:
    """Who calls, and from which client."""

    principal: Principal
    client: Client


class Calls:
    """`observe(method, code, seconds)` hears of every call, once it is set."""

    def __init__(self, edge: Capabilities, signatures: Signatures, clients: Clients) -> None:
        self._edge, self._signatures, self._clients = edge, signatures, clients
        self.observe: Observe = lambda method, code, seconds: None
        settings = edge.settings
        self._receiving = Receiving(settings.request_timeout_ms / 1000, settings.token_in_flight_max, signatures.shares)

    def unary(self, name: str, call: Unary, answer: Any) -> Callable[[Any, Any], Awaitable[Any]]:
        """A call as gRPC wants it: identified, received, answered whatever happens, measured."""

        async def handle(_: Any, context: Any) -> Any:
            began_s, caller = perf_counter(), None
            try:
                caller = self._caller(context)
                request = await self._receiving.message(caller.principal, context)
                async with self._held(caller, request, patient=name == "EndTransaction"):
                    made = await call(caller, request)
            except Exception as error:
                self._note_denial(caller, name, error)
                made = answer(status=codes.of_error(error))
            self.observe(name, codes.name(made.status.code), perf_counter() - began_s)
            return made

        return handle

    def streamed(
        self, name: str, call: Callable[[Caller, Any, Any, Callable[[int], None] | None], Awaitable[str]], answer: Any
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A call that takes one message and writes many: `call(caller, request, context, hold)` returns its code. What is wrong
        is written as a status. `hold` hears of the bytes that are kept until the client has taken them."""

        async def handle(_: Any, context: Any) -> None:
            began_s, code, caller = perf_counter(), "OK", None
            try:
                caller = self._caller(context)
                request = await self._receiving.message(caller.principal, context)
                async with self._held(caller, request), self._holding(caller) as hold:
                    code = await call(caller, request, context, hold)
            except Exception as error:
                self._note_denial(caller, name, error)
                status = codes.of_error(error)
                code = codes.name(status.code)
                await context.write(answer(status=status))
            except BaseException:
                code = "cancelled"
                raise
            finally:
                self.observe(name, code, perf_counter() - began_s)

        return handle

    def stream(
        self, name: str, serve: Callable[[Caller, Any, AsyncIterator[Any]], Awaitable[str]], answer: Any
    ) -> Callable[[Any, Any], Awaitable[None]]:
        """A stream in both directions until the client or the edge ends it: `serve(caller, context, commands)` returns its code.
        Whatever is wrong is told in a command, and ends it."""

        async def handle(_: Any, context: Any) -> None:
            began_s, code, caller = perf_counter(), "OK", None
            try:
                caller = self._caller(context)
                with self._receiving.stream(caller.principal):
                    code = await serve(caller, context, self._receiving.commands(caller.principal, context))
            except Exception as error:
                self._note_denial(caller, name, error)
                status = codes.of_error(error)
                code = codes.name(status.code)
                await context.write(answer(status=status))
            finally:
                self.observe(name, code, perf_counter() - began_s)

        return handle

    def _caller(self, context: Any) -> Caller:
        metadata = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        principal = self._signatures.principal(metadata, self._edge.now_ms() / 1000)
        id = metadata.get("x-mq-client-id", "")
        if not id or len(id) > MEMBER_MAX_CHARACTERS:
            text = f"x-mq-client-id: name the client in 1 to {MEMBER_MAX_CHARACTERS} characters"
            raise Refused(pb.CLIENT_ID_REQUIRED, text)
        return Caller(principal, self._clients.seen(principal, id))

    def _note_denial(self, caller: Caller | None, name: str, error: Exception) -> None:
        if isinstance(error, Forbidden | Unauthorized):
            who = "nobody" if caller is None else caller.principal.name
            self._edge.offers.audit.denied(who, f"gRPC {name}", str(error))

    def _held(self, caller: Caller, request: Any, *, patient: bool = False) -> AbstractAsyncContextManager[None]:
        """Around a call: its token keeps to its share."""
        if not caller.principal.is_limited:
            return nullcontext()
        return self._signatures.shares.held(caller.principal.name, request.ByteSize(), patient=patient)

    @asynccontextmanager
    async def _holding(self, caller: Caller) -> AsyncIterator[Callable[[int], None] | None]:
        """Messages that were taken are held until the client has taken them."""
        if not caller.principal.is_limited:
            yield None
            return
        shares, name, held = self._signatures.shares, caller.principal.name, 0

        def hold(size_bytes: int) -> None:
            nonlocal held
            shares.hold(name, size_bytes)
            held += size_bytes

        try:
            yield hold
        finally:
            shares.let_go(name, held)
