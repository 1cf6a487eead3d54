"""`format("escrow")` against a running service, with real Spark."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest

from tests.support.edge_client import EdgeClient


def send(client, topic, texts, **rest):
    client.send([{"group": "g", "topic": topic, "text": text, **rest} for text in texts])


def committed(client, topic, texts):
    ids = client.prepare([{"group": "g", "topic": topic, "text": text, "key": text, "properties": {"n": text}} for text in texts])
    for id in ids:
        client.end("g", id, "commit")
    return ids


def options(service, topic, **rest):
    return {"url": service.url, "topic": topic, "startingOffsets": "earliest", **rest}


def read(spark, service, topic, **rest):
    return spark.read.format("escrow").options(**options(service, topic, **rest)).load()


class Copy:
    """A streaming copy of a topic into Parquet, until everything that is there has been copied."""

    def __init__(self, spark, directory, given):
        self.spark, self.directory, self.given = spark, directory, given
        self.rows = []

    def run(self):
        query = (
            self.spark.readStream.format("escrow")
            .options(**self.given)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.directory / "out"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            self.rows += [progress["numInputRows"] for progress in query.recentProgress]
            query.stop()
        return self

    def copied(self):
        rows = self.spark.read.parquet(str(self.directory / "out")).select("queue", "offset", "body").collect()
        return Counter((row.queue, row.offset, bytes(row.body).decode()) for row in rows)


def test_a_batch_has_every_released_message_with_all_that_is_known(spark, service, client):
    ids = committed(client, "batch", ["a", "b"])
    (rolled,) = client.prepare([{"group": "g", "topic": "batch", "text": "rolled back"}])
    client.end("g", rolled, "rollback")
    send(client, "batch", ["plain"])
    told = client.transaction(ids[0])
    rows = {bytes(row.body).decode(): row for row in read(spark, service, "batch").collect()}
    assert set(rows) == {"a", "b", "plain"}
    assert [rows[text].transaction_id for text in ("a", "b", "plain")] == [*ids, None]
    assert (rows["a"].topic, rows["a"].key, rows["a"].tags, rows["a"].properties) == ("batch", "a", None, {"n": "a"})
    assert rows["plain"].key is None
    assert rows["a"].offset == told["queue_offset"]
    assert rows["a"].queue == told["queue_id"]
    assert rows["a"].stored_at.timestamp() * 1000 == pytest.approx(told["stored_at_ms"], abs=0.5)
    assert rows["a"].stored_at <= rows["a"].released_at
    assert rows["plain"].released_at == rows["plain"].stored_at
    with EdgeClient(service.port) as consumer:
        taken = consumer.consume("batch", group="readers", max=10)
    assert sorted(message["body"] for message in taken) == [b"a", b"b", b"plain"], "no consumer group was moved"


def test_a_stream_keeps_its_limit_and_goes_on_from_its_checkpoint(spark, service, client, tmp_path):
    send(client, "limited", [f"m{number}" for number in range(25)])
    copy = Copy(spark, tmp_path, options(service, "limited", maxMessagesPerTrigger="10")).run()
    batches = [count for count in copy.rows if count]
    assert sum(batches) == 25
    assert max(batches) <= 10, "latestOffset(start, limit) admits no more"
    with EdgeClient(service.port) as again:
        committed(again, "limited", ["later"])
    copy.run()
    copied = copy.copied()
    assert set(copied.values()) == {1}
    assert Counter(text for _, _, text in copied)["later"] == 1
    assert len(copied) == 26


def test_starting_offsets_by_time_and_latest(spark, service, client):
    send(client, "timed", ["old"])
    border_ms = int(read(spark, service, "timed").collect()[0].released_at.timestamp() * 1000)
    with EdgeClient(service.port) as again:
        while again.transaction(committed(again, "elsewhere", ["tick"])[0])["stored_at_ms"] <= border_ms:
            pass
        send(again, "timed", ["new"])
    found = read(spark, service, "timed", startingOffsets=str(border_ms + 1)).collect()
    assert [bytes(row.body) for row in found] == [b"new"]
    assert read(spark, service, "timed", startingOffsets="latest").collect() == []


def test_the_edge_is_killed_in_the_middle_and_nothing_is_lost_or_doubled(spark, service, client, tmp_path):
    send(client, "killed", [f"m{number}" for number in range(300)])
    copy = Copy(spark, tmp_path, options(service, "killed", maxMessagesPerTrigger="40"))
    running = threading.Thread(target=copy.run)
    running.start()
    try:
        for number in range(3):
            service.kill_edge()
            service.start_edge()
            with EdgeClient(service.port) as again:
                committed(again, "killed", [f"after {number}"])
    finally:
        running.join()
    copy.run()
    copied = copy.copied()
    assert set(copied.values()) == {1}
    assert {text for _, _, text in copied} == {f"m{n}" for n in range(300)} | {f"after {n}" for n in range(3)}


@pytest.mark.parametrize("what", ["store_id", "incarnation", "topic_id"])
def test_a_checkpoint_of_something_else_fails_by_name(spark, service, client, tmp_path, what):
    topic = f"mismatch.{what}"
    send(client, topic, ["a"])
    copy = Copy(spark, tmp_path, options(service, topic)).run()
    (offsets,) = [file for file in (tmp_path / "checkpoint" / "offsets").iterdir() if file.name == "0"]
    *head, last = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*head, json.dumps({**json.loads(last), what: "another"})]))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    with EdgeClient(service.port) as again:
        send(again, topic, ["b"])
    with pytest.raises(Exception, match=rf"OffsetMismatch: {what}: the checkpoint says 'another'"):
        copy.run()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"topic": ""}, "option 'topic' is missing"),
        ({"url": ""}, "option 'url' is missing"),
        ({"url": "localhost"}, "url: 'localhost' is not like http://"),
        ({"retries": "5"}, "there is no option 'retries'; it takes bytesPerPage"),
        ({"startingOffsets": "yesterday"}, "startingOffsets: 'yesterday' is neither earliest nor latest nor a time"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe' is neither true nor false"),
        ({"maxMessagesPerTrigger": "0"}, "maxMessagesPerTrigger: '0' is not a whole number of 1 or more"),
        ({"tokenFile": "/nowhere"}, "tokenFile: /nowhere: No such file"),
        ({"topic": "nobody.made.this"}, "topic: there is no topic 'nobody.made.this' at"),
        ({"url": "http://127.0.0.1:9", "retryFor": "0.1"}, "Unreachable"),
    ],
)
def test_wrong_options_are_told_in_the_words_of_the_caller(spark, service, tmp_path, changed, told):
    with EdgeClient(service.port) as client:
        send(client, "optioned", ["x"])
    with pytest.raises(Exception, match=told):
        Copy(spark, tmp_path, {**options(service, "optioned"), **changed}).run()


def test_a_schema_of_the_caller_is_refused(spark, service):
    with pytest.raises(Exception, match="the columns of this source are fixed"):
        spark.read.format("escrow").schema("a INT").options(**options(service, "any")).load().collect()


def test_a_batch_has_no_trigger(spark, service, client):
    send(client, "optioned", ["x"])
    with pytest.raises(Exception, match="maxMessagesPerTrigger: is for readStream"):
        read(spark, service, "optioned", maxMessagesPerTrigger="5").collect()
