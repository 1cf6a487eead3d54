"""A bare gRPC server of the same kind as the edge's: parses SendMessage and answers a constant.

`python -m benchmarks.grpc_bare KIND`:
aio      grpc.aio in uvloop, with the edge's own options: what `make bench-grpc` compares with
sync     a synchronous grpc.server with eight threads
bridge   the same, each call handed to an event loop in another thread and waited for: what it would take to reach the edge's core
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import uvloop

from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq.front import server_options
from ingest.rocketmq.service import SERVICE
from runtime.settings import load

ANSWER = pb.SendMessageResponse(
    status=pb.Status(code=pb.OK, message="OK"),
    entries=[
        pb.SendResultEntry(status=pb.Status(code=pb.OK, message="OK"), message_id="0" * 34, transaction_id="x" * 58, offset=1)
    ],
)


def handler(call: Any) -> Any:
    method = grpc.unary_unary_rpc_method_handler(call, pb.SendMessageRequest.FromString, pb.SendMessageResponse.SerializeToString)
    return grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": method})


async def answer(request: pb.SendMessageRequest, context: Any = None) -> pb.SendMessageResponse:
    return ANSWER


async def serve_aio() -> None:
    settings = load(None, (), {})
    calls_max = settings.grpc_calls_max
    server: Any = grpc.aio.server(options=server_options(settings, calls_max), maximum_concurrent_rpcs=calls_max)
    server.add_generic_rpc_handlers((handler(answer),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def serve_sync(bridge: bool) -> None:
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def call(request: pb.SendMessageRequest, context: Any) -> pb.SendMessageResponse:
        return asyncio.run_coroutine_threadsafe(answer(request), loop).result() if bridge else ANSWER

    server = grpc.server(ThreadPoolExecutor(8), options=server_options(load(None, (), {}), 4096))
    server.add_generic_rpc_handlers((handler(call),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    if sys.argv[1] == "aio":
        uvloop.run(serve_aio())
    else:
        serve_sync(sys.argv[1] == "bridge")
