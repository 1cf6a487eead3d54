"""RocketMQ's own Python client, played by a test: the same commands as java/…/Player.java, which `tests/support/players.py` lists.

Runs in an environment of its own (.clients/python): its protobuf stubs and Escrow's have the same names, and cannot be in one
process.
"""

import os
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

#: How long `receive` waits for a first message.
AWAIT_S = int(os.environ.get("PLAYER_AWAIT_S", "2"))
_saying = threading.Lock()


def say(kind, *words):
    with _saying:
        print(kind, *words, sep="\t", flush=True)


def text_of(message):
    return message.body.decode()


class Checker(TransactionChecker):
    """Answers what the half's property "answer" says: words for one time after the other, the last one for ever."""

    def __init__(self):
        self.asked = {}

    def check(self, message):
        times = self.asked[message.message_id] = self.asked.get(message.message_id, 0) + 1
        answers = message.properties.get("answer", "unknown").split(",")
        answer = answers[min(times, len(answers)) - 1]
        say("!", "check", text_of(message), answer, message.message_id)
        known = {"commit": TransactionResolution.COMMIT, "rollback": TransactionResolution.ROLLBACK}
        return known.get(answer, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


class Listener(MessageListener):
    """A body that begins with failN: its first N deliveries fail. One that begins with hang is never done with."""

    def consume(self, message):
        body = text_of(message)
        say("!", "push", body, message.message_id, message.delivery_attempt)
        if body.startswith("hang"):
            threading.Event().wait()
        fails = body.startswith("fail") and message.delivery_attempt <= int(body[4])
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Player:
    def __init__(self, endpoints, namespace, access_key, secret_key, tls):
        self.configuration = ClientConfiguration(endpoints, Credentials(access_key, secret_key), namespace)
        self.tls = tls == "true"
        self.open, self.transactions, self.received = [], [], []

    def play(self, command, *words):
        return getattr(self, command)(*words)

    def start(self, client):
        client.startup()
        self.open.append(client)
        return client

    def message(self, topic, body, tag="", key=""):
        made = Message()
        made.topic, made.body = topic, body.encode()
        if tag:
            made.tag = tag
        if key:
            made.keys = key
        return made

    def producer(self, topics):
        self.sender = self.start(Producer(self.configuration, topics.split(","), Checker(), self.tls))
        return ("ok",)

    def half(self, topic, body, answer, outcome):
        transaction, made = self.sender.begin_transaction(), self.message(topic, body)
        made.add_property("answer", answer)
        receipt = self.sender.send(made, transaction)
        self.transactions.append(transaction)
        if outcome != "silent":
            getattr(transaction, outcome)()
        return "ok", receipt.message_id, receipt.transaction_id, len(self.transactions) - 1

    def end(self, number, outcome):
        getattr(self.transactions[int(number)], outcome)()
        return ("ok",)

    def send(self, topic, body, tag, key):
        return "ok", self.sender.send(self.message(topic, body, tag, key)).message_id

    def fifo(self, topic, body):
        made = self.message(topic, body)
        made.message_group = "g"
        return "ok", self.sender.send(made).message_id

    def delay(self, topic, body):
        made = self.message(topic, body)
        made.delivery_timestamp = int(time.time()) + 3600
        return "ok", self.sender.send(made).message_id

    def simple(self, group, topic, tags):
        self.consumer = self.start(
            SimpleConsumer(self.configuration, group, {topic: FilterExpression(tags)}, AWAIT_S, tls_enable=self.tls)
        )
        return ("ok",)

    def receive(self, most, invisible):
        self.received = self.consumer.receive(int(most), int(invisible)) or []
        return "ok", *[
            f"{text_of(each)}|{each.message_id}|{each.delivery_attempt}|{each.tag or ''}|{','.join(sorted(each.keys))}"
            for each in self.received
        ]

    def ack(self, number):
        self.consumer.ack(self.received[int(number)])
        return ("ok",)

    def invisible(self, number, seconds):
        self.consumer.change_invisible_duration(self.received[int(number)], int(float(seconds)))
        return ("ok",)

    def push(self, group, topic, tags):
        self.start(PushConsumer(self.configuration, group, Listener(), {topic: FilterExpression(tags)}, tls_enable=self.tls))
        return ("ok",)

    def close(self):
        while self.open:
            self.open.pop().shutdown()
        return ("ok",)


def main():
    player = Player(*sys.argv[1:])
    say("!", "ready")
    for line in sys.stdin:
        try:
            say("=", *player.play(*line.rstrip("\n").split("\t")))
        except Exception as error:
            say("=", "error", type(error).__name__, " ".join(str(error).split()))
    player.close()


if __name__ == "__main__":
    main()
