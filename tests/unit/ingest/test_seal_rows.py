"""Ids of many rows at once: the same as sealing each."""

from __future__ import annotations

import numpy as np

from ingest.ids import Sealer


def test_the_same_as_one_by_one():
    sealer = Sealer([b"k" * 32], "00" * 8)
    rng = np.random.default_rng(7)
    half_offsets, group_nos = np.sort(rng.choice(10_000, 500, replace=False)), rng.integers(0, 5, 500).astype(np.int32)
    found = [text.decode() for text in sealer.seal_rows(half_offsets, group_nos).tolist()]
    assert found == [sealer.seal(half, group) for half, group in zip(half_offsets.tolist(), group_nos.tolist(), strict=True)]
    assert len(sealer.seal_rows(half_offsets[:0], group_nos[:0])) == 0
