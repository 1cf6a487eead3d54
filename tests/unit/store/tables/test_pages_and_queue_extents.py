"""Mapped pages: what one side tells the other."""

from __future__ import annotations

import pytest

from store.errors import Corrupt, StoreUnusable
from store.io.pages import EDGE_MAGIC, JOB_MAGIC, PAGE_BYTES, EdgeSlot, JobSlot, PublishedPage
from store.tables import queue_extents as catalogue_module
from store.tables.queue_extents import Catalogue
from store.tables.redo_log import TOTALS


def test_a_page_is_read_as_it_is_written(tmp_path):
    writer = PublishedPage(tmp_path / "page", EDGE_MAGIC, writable=True)
    reader = PublishedPage(tmp_path / "page", EDGE_MAGIC)
    assert reader[EdgeSlot.HALF_END] == 0
    writer[EdgeSlot.HALF_END] = 1 << 62
    assert reader[EdgeSlot.HALF_END] == 1 << 62
    raw = (tmp_path / "page").read_bytes()
    assert len(raw) == PAGE_BYTES
    assert raw[8 * EdgeSlot.HALF_END :][:8] == (1 << 62).to_bytes(8, "little")


def test_a_page_of_another_kind_is_refused(tmp_path):
    PublishedPage(tmp_path / "page", EDGE_MAGIC, writable=True)
    with pytest.raises(Corrupt, match="not a published page"):
        PublishedPage(tmp_path / "page", JOB_MAGIC)
    with pytest.raises(StoreUnusable):
        PublishedPage(tmp_path / "nowhere", JOB_MAGIC)


def test_slots_do_not_overlap():
    slots = [value for name, value in vars(JobSlot).items() if name.isupper()]
    assert len(slots) == len(set(slots))
    assert 0 not in slots
    assert not set(slots) & set(range(JobSlot.TOTALS + 1, JobSlot.TOTALS + len(TOTALS))), "these hold the other totals"
    edge = [value for name, value in vars(EdgeSlot).items() if name.isupper()]
    assert (len(edge), 0 in edge) == (len(set(edge)), False)


def test_a_catalogue_knows_where_each_queue_begins_and_ends(tmp_path):
    catalogue = Catalogue(tmp_path / "catalogue", writable=True)
    assert catalogue.extent(7) == (0, 0)
    catalogue.extend(7, 0, 5)
    catalogue.extend(3, 100, 130)
    catalogue.extend(7, 99, 9)
    catalogue.extend(7, 0, 2)
    assert (catalogue.extent(7), catalogue.extent(3), catalogue.queue_keys()) == ((0, 9), (100, 130), [3, 7])
    catalogue.raise_begin(7, 4)
    catalogue.raise_begin(7, 1)
    assert catalogue.extent(7) == (4, 9)
    catalogue.close()
    assert Catalogue(tmp_path / "catalogue", writable=True).extent(7) == (4, 9)


def test_a_reader_sees_ends_at_once_and_new_queues_after_a_refresh(tmp_path):
    catalogue = Catalogue(tmp_path / "catalogue", writable=True)
    catalogue.extend(1, 0, 1)
    reader = Catalogue(tmp_path / "catalogue")
    catalogue.extend(1, 0, 8)
    catalogue.extend(2, 0, 3)
    assert (reader.extent(1), reader.extent(2)) == ((0, 8), (0, 0))
    reader.refresh()
    assert reader.extent(2) == (0, 3)


def test_a_catalogue_rolls_into_another_file(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue_module, "SLOTS_PER_FILE", 8)
    catalogue = Catalogue(tmp_path / "catalogue", writable=True)
    reader = Catalogue(tmp_path / "catalogue")
    for key in range(20):
        catalogue.extend(key * 3, 0, key + 1)
    reader.refresh()
    assert len(list((tmp_path / "catalogue").iterdir())) == 3
    for found in (catalogue, reader, Catalogue(tmp_path / "catalogue", writable=True)):
        assert [found.extent(key * 3)[1] for key in range(20)] == list(range(1, 21))


def test_an_empty_catalogue_can_be_read_before_it_is_made(tmp_path):
    reader = Catalogue(tmp_path / "nowhere")
    assert (reader.queue_keys(), reader.extent(0)) == ([], (0, 0))
