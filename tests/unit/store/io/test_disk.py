"""All disk access goes through one module: failpoints, small files replaced whole, refusals that name the remedy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from store.errors import Corrupt, FlushFailed, StoreUnusable
from store.io import disk


@pytest.fixture(autouse=True)
def disarm():
    yield
    disk.arm(None)


@pytest.fixture
def opened(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(16))
    fd = disk.open_file(path, True)
    yield fd, path
    disk.close_file(fd)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("ENOSPC", "lower fileReservedTime"), ("EROFS", "read-only"), ("EACCES", "permission denied"), ("EIO", "kernel log")],
)
def test_a_refusal_of_the_system_names_the_file_and_the_remedy(opened, name, remedy):
    fd, path = opened
    disk.arm("x.write", name)
    with pytest.raises(StoreUnusable, match=remedy) as raised:
        disk.write(fd, b"abc", 0, "x", path)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == bytes(16)


def test_a_failpoint_fires_at_its_nth_pass_and_once(opened):
    fd, path = opened
    disk.arm("x.write", "EIO", nth=3)
    for _ in range(2):
        disk.write(fd, b"a", 0, "x", path)
    with pytest.raises(StoreUnusable):
        disk.write(fd, b"b", 1, "x", path)
    disk.write(fd, b"c", 2, "x", path)
    assert path.read_bytes() == b"a\0c" + bytes(13)


def test_recording_counts_the_passes(opened):
    fd, path = opened
    with disk.recording() as passed:
        disk.write(fd, b"a", 0, "x", path)
        disk.flush(fd, "x", path)
        disk.flush(fd, "y", path)
    disk.flush(fd, "x", path)
    assert passed == {"x.write": 1, "x.flush": 1, "y.flush": 1}


def test_a_failed_flush_is_final_by_its_type(opened):
    fd, path = opened
    disk.arm("x.flush", "EIO")
    with pytest.raises(FlushFailed, match="reopen the store"):
        disk.flush(fd, "x", path)


def test_a_short_write_is_completed(opened, monkeypatch):
    fd, path = opened
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:3], at))
    disk.write(fd, b"0123456789", 2, "x", path)
    assert path.read_bytes() == b"\0\0" + b"0123456789" + bytes(4)


def test_cut_zeroes_what_lies_behind_and_keeps_the_size(opened):
    fd, path = opened
    disk.write(fd, b"x" * 16, 0, "x", path)
    disk.cut(fd, 5, 16, "x", path)
    assert path.read_bytes() == b"x" * 5 + bytes(11)


def test_cut_zeroes_all_that_was_written_wherever_it_lies(tmp_path):
    """Bigger than one write of zeros, with holes: as after a power loss, which keeps pages in any order."""
    path, size = tmp_path / "sparse", 5 << 20
    disk.create_segment(path, size, "x")
    fd = disk.open_file(path, writable=True)
    for at, length in ((0, 100), (4096 * 3, 5), ((1 << 20) - 7, 3 << 20), (size - 9, 9)):
        disk.write(fd, b"x" * length, at, "x", path)
    disk.cut(fd, 64, size, "x", path)
    os.close(fd)
    assert path.read_bytes() == b"x" * 64 + bytes(size - 64)


def test_cut_never_shortens_the_file_not_even_for_a_moment(opened, monkeypatch):
    """The other process may be about to map it."""
    fd, path = opened
    monkeypatch.setattr(os, "ftruncate", None)
    sizes, real = [], os.pwrite

    def pwrite(fd, data, at):
        sizes.append(path.stat().st_size)
        return real(fd, data, at)

    disk.write(fd, b"x" * 16, 0, "x", path)
    monkeypatch.setattr(os, "pwrite", pwrite)
    disk.cut(fd, 5, 16, "x", path)
    assert sizes == [16]


def test_replacing_a_file_gives_the_old_content_or_the_new(tmp_path):
    path = tmp_path / "small"
    disk.replace_file(path, b"old", "small")
    disk.arm("small.replace", "ENOSPC")
    with pytest.raises(StoreUnusable):
        disk.replace_file(path, b"new", "small")
    assert path.read_bytes() == b"old"
    disk.arm(None)
    disk.replace_file(path, b"new", "small")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["small"]


def test_json_carries_a_crc(tmp_path):
    path = tmp_path / "state"
    assert disk.read_json(path) is None
    disk.write_json(path, {"b": [1, 2], "a": "ö"}, "state")
    assert disk.read_json(path) == {"a": "ö", "b": [1, 2]}
    content = path.read_bytes()
    for at in range(len(content) - 1):
        damaged = bytearray(content)
        damaged[at] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(Corrupt, match="CRC"):
            disk.read_json(path)
    path.write_bytes(content[:5])
    with pytest.raises(Corrupt):
        disk.read_json(path)


def test_a_directory_is_made_with_its_parents_and_made_once(tmp_path):
    with disk.recording() as passed:
        disk.make_directory(tmp_path / "a" / "b" / "c")
        disk.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert passed == {"directory.create": 3, "directory.flush_directory": 3}


@pytest.mark.parametrize(("action", "content"), [("kill", b""), ("kill-after", b"0123456789"), ("torn", b"01234")])
def test_a_failpoint_armed_by_the_environment_kills_its_process(tmp_path, action, content):
    path = tmp_path / "file"
    path.write_bytes(b"")
    code = (
        "import pathlib, sys; from store.io import disk; path = pathlib.Path(sys.argv[1]);"
        "disk.write(disk.open_file(path, True), b'0123456789', 0, 'x', path); print('survived')"
    )
    environment = {**os.environ, disk.FAILPOINT_VARIABLE: f"x.write={action}@1"}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (-9, b"")
    assert path.read_bytes() == content
