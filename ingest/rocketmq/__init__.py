"""The front for RocketMQ 5's own clients: one more door to the same rooms. docs/rocketmq-clients.md says what it offers.

messaging.proto     what goes over the wire; messaging_pb2 is made from it
front.py            the gRPC server: ports, limits, life; a part of the edge
service.py          the methods, mounted
calls.py            what surrounds every call: identity, shares, denials, measuring
routing.py, telemetry.py, producing.py, consuming.py    what each method does
clients.py          who is there: telemetry streams, check requests down them, what push consumers have in hand, routes
wire.py             messages from and to the wire
codes.py            what an error becomes: a status code in the answer
receiving.py        messages are read when the caller is known, and within its share
"""
