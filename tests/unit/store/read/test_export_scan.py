"""History of halves beside retention. (The export's own tests are with the command.)"""

from __future__ import annotations

from contextlib import closing

from ingest.operating.history import Histories
from store.read.export_scan import History, Wanted
from store.records import State

DAY = 86_400


def worn(service):
    """Halves that are gone from the log, though their state file is not full and stays. (committed, rolled back, kept)"""
    halves = service.send(*[b"x" * 5000] * 10) + service.send(*[b"x" * 5000] * 10)
    service.commit(*halves[:10])
    service.roll_back(*halves[10:])
    service.settle()
    service.sleep(2 * DAY)
    kept = service.send(*[b"x" * 5000] * 10)
    service.commit(*kept)
    service.settle()
    assert service.retain(DAY)["commitlog"] > 0
    assert service.edge.half_queue.begin == 0
    return halves[:10], halves[10:], kept


def test_a_half_that_is_gone_from_the_log_is_told_gone_as_an_end_is(service):
    committed, _, kept = worn(service)
    assert service.commit(committed[0])[0].reason == "gone"
    with closing(Histories(service.edge)) as histories:
        assert (histories.of(committed[0]).state, histories.inspect(committed[0]).transaction.state) == ("GONE", "GONE")
        assert histories.of(kept[-1]).state == "COMMITTED"


def test_a_half_that_is_gone_from_the_log_is_gone_from_the_export_too(service):
    """Its id is answered `gone`: a rebuild would not know how it ended."""
    committed, _, kept = worn(service)
    with closing(History(service.root)) as history:
        found = {
            half: (State(int(ended["state"])), bool(valid))
            for chunk in history.chunks(Wanted())
            for half, ended, valid in zip(chunk.half_offsets.tolist(), chunk.ended, chunk.valid, strict=True)
        }
    assert committed[0] not in found
    assert {found[half] for half in kept} == {(State.COMMITTED, True)}
    assert all(valid for _, valid in found.values())
