"""Receipts are sealed: nobody makes one for a message that was not handed to them."""

from __future__ import annotations

import asyncio

import pytest

from ingest.consuming.receipts import Receipt, ReceiptSealer
from ingest.errors import InvalidRequest
from tests.support.edge_world import world

ONE = Receipt(1, 0x41, 7, 2, 1_800_000_000_000)


@pytest.mark.parametrize("receipt", [ONE, ONE._replace(tag="00c0ffee")])
def test_what_was_sealed_opens(receipt):
    sealer = ReceiptSealer([b"key"])
    assert sealer.open(sealer.seal(receipt), "receipt") == (receipt, True)
    assert ReceiptSealer([b"new", b"key"]).open(sealer.seal(receipt), "receipt") == (receipt, True), "an old key opens"


def test_any_change_breaks_the_seal():
    sealer = ReceiptSealer([b"key"])
    text = sealer.seal(ONE)
    assert sealer.open(ONE.said(), "receipt") == (ONE, False), "as releases of before made them"
    assert sealer.open(ReceiptSealer([b"other"]).seal(ONE), "receipt") == (ONE, False)
    for at, letter in enumerate(text):
        changed = text[:at] + ("0" if letter != "0" else "1") + text[at + 1 :]
        try:
            receipt, good = sealer.open(changed, "receipt")
        except InvalidRequest:
            continue
        assert (receipt, good) == (ONE, True) if changed == text else not good, changed


def test_a_forged_receipt_is_stale(tmp_path):
    async def story():
        async with world(tmp_path) as w:
            await w.edge.send([w.message()])
            (got,) = await w.pull()
            receipt, _ = ReceiptSealer([b"x"]).open(got.receipt, "receipt")
            forged = [receipt.said(), ReceiptSealer([b"x"]).seal(receipt)]
            consumption, topic = w.edge.consumption, got.topic
            assert await consumption.ack(topic, "c", forged) == ["stale", "stale"]
            assert await consumption.change_visibility(topic, "c", forged, 60) == [None, None]
            assert await consumption.ack(topic, "c", [got.receipt]) == ["done"]

    asyncio.run(story())
