"""The directory of a store: its format, its geometry, its locks; and clear refusals of everything else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from store.directory import FORMAT_VERSION, Geometry, Lock, StoreDirectory
from store.edge.store import EdgeStore
from store.errors import Corrupt, FormatTooNew, GeometryMismatch, NotAStore, StoreError, StoreLocked
from store.job.store import JobStore
from tests.support.service import SMALLEST, segment_files


def test_the_default_geometry_is_rocketmqs():
    geometry = Geometry()
    assert (geometry.commit_log_segment_bytes, geometry.state_segment_bytes, geometry.redo_segment_bytes) == (
        1 << 30,
        48_000_000,
        40_000_000,
    )


def test_making_and_opening_agree(tmp_path):
    made = StoreDirectory(tmp_path / "store", SMALLEST, create=True)
    opened = StoreDirectory(tmp_path / "store")
    assert (opened.geometry, opened.store_id) == (SMALLEST, made.store_id)
    assert len(made.store_id) == 16
    assert StoreDirectory(tmp_path / "other", SMALLEST, create=True).store_id != made.store_id


def test_the_redo_log_lies_where_rocketmq_has_it(tmp_path):
    directory = StoreDirectory(tmp_path / "store", SMALLEST, create=True)
    assert directory.redo_log().relative_to(directory.root).as_posix() == ("transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0")
    assert directory.half_queue(3).name == "3"


def test_nothing_there_is_no_store_and_nothing_is_made(tmp_path):
    for open_store in (StoreDirectory, JobStore):
        with pytest.raises(NotAStore, match="not an Escrow store"):
            open_store(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_with_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(NotAStore, match=r"thesis\.txt"):
        EdgeStore(tmp_path, geometry=SMALLEST)
    assert set(os.listdir(tmp_path)) <= {"thesis.txt", "make.lock"}
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_fresh_file_systems_lost_and_found_is_tolerated(tmp_path):
    (tmp_path / "lost+found").mkdir()
    EdgeStore(tmp_path, geometry=SMALLEST).close()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"escrow_format": "1"}', b"\xff\xfe"])
def test_a_format_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "format.json").write_bytes(content)
    with pytest.raises(NotAStore):
        StoreDirectory(tmp_path)
    with pytest.raises(NotAStore):
        EdgeStore(tmp_path)
    assert (tmp_path / "format.json").read_bytes() == content


def test_a_newer_format_is_refused_and_nothing_touched(tmp_path):
    EdgeStore(tmp_path / "store", geometry=SMALLEST).close()
    path = tmp_path / "store" / "format.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "escrow_format": FORMAT_VERSION + 1}))
    before = segment_files(tmp_path / "store")
    for open_store in (EdgeStore, JobStore, StoreDirectory):
        with pytest.raises(FormatTooNew, match=f"format {FORMAT_VERSION + 1}"):
            open_store(tmp_path / "store")
    assert segment_files(tmp_path / "store") == before


@pytest.mark.parametrize("field", list(SMALLEST.__dataclass_fields__))
def test_other_file_sizes_than_the_store_was_made_with_are_refused_by_name(tmp_path, field):
    EdgeStore(tmp_path / "store", geometry=SMALLEST).close()
    other = replace(SMALLEST, **{field: getattr(SMALLEST, field) * 2})
    for open_store in (EdgeStore, JobStore):
        with pytest.raises(GeometryMismatch, match=f"{field} is {getattr(SMALLEST, field)}, not {getattr(other, field)}"):
            open_store(tmp_path / "store", geometry=other)
    EdgeStore(tmp_path / "store").close()


@pytest.mark.parametrize(
    ("field", "value"),
    [("commit_log_segment_bytes", 65_535), ("commit_log_segment_bytes", (1 << 34) + 1)]
    + [(field, 63) for field in SMALLEST.__dataclass_fields__ if field != "commit_log_segment_bytes"],
)
def test_file_sizes_have_limits(field, value):
    with pytest.raises(ValueError, match=field):
        replace(SMALLEST, **{field: value})


def test_a_second_writer_of_either_side_is_refused_and_the_first_is_named(tmp_path):
    with EdgeStore(tmp_path / "store", geometry=SMALLEST):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} is the edge of this store"):
            EdgeStore(tmp_path / "store")
        with JobStore(tmp_path / "store"), pytest.raises(StoreLocked, match="the settling job"):
            JobStore(tmp_path / "store")


def test_a_second_writer_in_another_process_is_refused(tmp_path):
    code = "import pathlib, sys; from store.edge.store import EdgeStore; EdgeStore(pathlib.Path(sys.argv[1]))"
    with EdgeStore(tmp_path / "store", geometry=SMALLEST):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, check=False)
        assert done.returncode != 0
        assert b"StoreLocked" in done.stderr
        assert str(os.getpid()).encode() in done.stderr


def test_a_lock_ends_with_its_holder(tmp_path):
    lock = Lock(tmp_path / "lock", "me")
    with pytest.raises(StoreLocked):
        Lock(tmp_path / "lock", "you")
    lock.release()
    lock.release()
    with Lock(tmp_path / "lock", "you"):
        pass


def test_an_edge_that_could_not_open_lets_go_of_its_lock(tmp_path):
    EdgeStore(tmp_path / "store", geometry=SMALLEST).close()
    stranger = tmp_path / "store" / "commitlog" / "notes.txt"
    stranger.write_text("x")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"notes\.txt"):
            EdgeStore(tmp_path / "store")
    stranger.unlink()
    EdgeStore(tmp_path / "store").close()


def test_a_generation_that_is_none_is_explained(tmp_path):
    with EdgeStore(tmp_path / "store", geometry=SMALLEST), JobStore(tmp_path / "store"):
        pass
    (tmp_path / "store" / "transaction" / "CURRENT").write_text("junk")
    with pytest.raises(Corrupt, match=r"CURRENT at 0: does not name a generation"):
        StoreDirectory(tmp_path / "store").current_generation()


def test_files_without_permission_are_explained(tmp_path):
    EdgeStore(tmp_path / "store", geometry=SMALLEST).close()
    for path in (tmp_path / "store").rglob("*"):
        path.chmod(0o500 if path.is_dir() else 0o400)
    for path in (tmp_path / "store", tmp_path, tmp_path.parent):
        path.chmod(0o755)
    code = (  # as root nothing is forbidden: become nobody, after the imports
        "import os, pathlib, sys; from store.edge.store import EdgeStore\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try: EdgeStore(pathlib.Path(sys.argv[1]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("StoreUnusable"), done
    assert "permission denied" in done.stdout.lower()
