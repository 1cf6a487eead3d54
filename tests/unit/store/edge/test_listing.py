"""The listing index beside retention. (tests/property/store/test_listing_model.py plays filters against a model.)"""

from __future__ import annotations

from store.edge.listing import half_files
from store.edge.listing.listing import Listing
from store.edge.listing.wanted import DISCARDED, OPEN, Wanted
from store.records import OpKind
from store.tables import ends
from tests.support.service import SMALLEST, Service

DAY = 24 * 3600


def test_a_piece_that_retention_has_taken_the_beginning_of_is_still_read(tmp_path, monkeypatch):
    """With few halves in doubt one piece of the index spans many files: an old discarded half and a new pending one."""
    monkeypatch.setattr(ends, "SEGMENT_BYTES", 64)
    monkeypatch.setattr(half_files, "ENDS_SEGMENT", 64)
    with Service(tmp_path / "store", geometry=SMALLEST) as service:
        (old,) = service.send(b"old")
        service.operate(old, OpKind.DISCARD_MAX)
        service.commit(*service.send(*[b"x"] * 200))
        (new,) = service.send(b"new")
        service.settle()
        listing = Listing(service.edge.directory, service.edge.dictionary)
        listing.index.advance()
        assert (len(listing.index), listing.summary().discarded) == (2, 1)

        service.sleep(2 * DAY)
        service.settle()
        service.commit(*service.send(*[b"x"] * 4))
        service.settle()
        removed = [service.retain(DAY) for _ in range(2)]
        assert removed[0]["ends"] > 0
        listing.refresh()

        counted = listing.summary()
        assert (counted.discarded, counted.pending.tolist()) == (0, [1])
        listing.index.tidy()
        assert (len(listing.index), listing.every(Wanted(OPEN)).tolist(), listing.every(Wanted(DISCARDED)).tolist()) == (
            1,
            [new],
            [],
        )
        listing.close()
