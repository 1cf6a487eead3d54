"""What `escrow.spark` makes of pages: losses, holes, offsets that are not there yet, and how a limit is shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrow._transport import Transport
from escrow.errors import EscrowError, refusal
from escrow.spark import messages
from escrow.spark._options import Given, OptionError
from escrow.spark.messages import OPTIONS, DataLoss, OffsetMismatch, QueueRange

IDENTITY = {"store_id": "s", "incarnation": "i", "topic_id": "1.0"}


def page(begin, end, following, offsets, **identity):
    count = len(offsets)
    return {
        "identity": {**IDENTITY, **identity}, "begin": begin, "end": end, "next": following, "queue_offsets": offsets,
        "keys": ["k"] * count, "tags": [""] * count, "bodies": [b"x"] * count, "properties": [{}] * count,
        "transaction_ids": [None] * count, "born_at_ms": [0] * count, "stored_at_ms": [1] * count, "released_at_ms": [1] * count,
    }  # fmt: skip


@pytest.fixture
def read(monkeypatch):
    def read(first, stop, pages, **options):
        asked, left = [], list(pages)

        def answer(self, queue, offset, count):
            asked.append((offset, count))
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(messages._Topic, "page", answer)
        monkeypatch.setattr("escrow.spark.messages.time.sleep", lambda _: None)
        given = Given("escrow", {"url": "http://x", "topic": "t", **options}, OPTIONS)
        batches = list(messages._Pages(given).read(QueueRange(0, first, stop, dict(IDENTITY))))
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()], asked

    return read


def test_holes_are_passed_over_and_the_end_of_the_range_is_kept(read):
    found, asked = read(2, 8, [page(0, 20, 5, [2, 4]), page(0, 20, 20, [7, 8, 9])])
    assert found == [2, 4, 7]
    assert asked == [(2, 6), (5, 3)]


def test_what_is_gone_fails_the_query_or_is_passed_over(read):
    pages = [page(6, 20, 8, [6, 7])]
    with pytest.raises(DataLoss, match="messages 2 to 5 are gone, removed after fileReservedTime"):
        read(2, 8, pages)
    assert read(2, 8, pages, failOnDataLoss="false")[0] == [6, 7]
    assert read(2, 5, pages, failOnDataLoss="false")[0] == [], "all of it is gone"


def test_what_is_promised_and_not_readable_yet_is_waited_for(read):
    found, asked = read(0, 2, [page(0, 0, 0, []), page(0, 1, 1, [0]), page(0, 1, 1, []), page(0, 2, 2, [1])])
    assert found == [0, 1]
    assert len(asked) == 4
    with pytest.raises(EscrowError, match=r"did not become readable within 0\.001 s"):
        read(0, 2, [page(0, 0, 0, [])], retryFor="0.001")


def test_a_store_that_was_changed_meanwhile_fails_by_name(read):
    with pytest.raises(OffsetMismatch, match="incarnation: the checkpoint says 'i', the service 'j'"):
        read(0, 2, [page(0, 2, 2, [0, 1], incarnation="j")])


QUEUES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6)


@given(QUEUES, st.integers(1, 100))
def test_a_limit_is_kept_and_something_always_goes_on(queues, most):
    firsts = {str(number): first for number, (first, _) in enumerate(queues)}
    ends = {str(number): first + news for number, (first, news) in enumerate(queues)}
    shared = messages._shared(firsts, ends, most)
    taken = {queue: shared[queue] - firsts[queue] for queue in ends}
    total = sum(news for _, news in queues)
    assert all(0 <= taken[queue] <= ends[queue] - firsts[queue] for queue in ends)
    assert sum(taken.values()) == min(most, total) or 0 < sum(taken.values()) <= most


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (refusal(501, "kafka_mode", "read Kafka"), r'runs in Kafka mode, .* read topic .t. with format\("kafka"\)'),
        (refusal(404, "no_such_topic", "topic: none", field="topic"), "topic: there is no topic 't' at http://x yet"),
        (refusal(403, "forbidden", "token r: may not read"), "token: token r: may not read"),
        (refusal(400, "invalid", "at: 'x' is neither", field="at"), "startingOffsets: 'x' is neither"),
    ],
)
def test_refusals_are_told_in_the_words_of_the_options(monkeypatch, refused, told):
    def perform(self, call, give_up_at=None):
        raise refused

    monkeypatch.setattr(Transport, "perform", perform)
    with pytest.raises(OptionError, match=told):
        messages._Topic(Given("escrow", {"url": "http://x", "topic": "t"}, OPTIONS)).places("x")
