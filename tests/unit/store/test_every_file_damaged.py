"""Every file that FORMAT.md names × every kind of damage × {closed in order, killed}.

What is derived is made anew, the same as before, or refused by name. What is truth is refused by name, or the damage is told and
costs only what it hit. Nobody ever gets another's message, number, place or name, and nothing is raised that is not a StoreError.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.errors import StoreError
from tests.support.damaged_files import Facts, Opened, look, make, verify_says
from tests.support.seeds import fast_directory

FORMAT = Path(__file__).parents[3] / "store" / "FORMAT.md"
GENERATION = "store/transaction/generation-*/"
#: Every path of FORMAT.md's table, and where its files are.
FILES = {
    "format.json": "store/format.json",
    "commitlog/": "store/commitlog/*",
    "half/0/": "store/half/0/*",
    "op/0/": "store/op/0/*",
    "ends/0/": "store/ends/0/*",
    "dictionary": "store/dictionary",
    "dedup/": "store/dedup/*",
    "names/": "store/names/*",
    "presence/": "store/presence/*",
    "edge.cursors": "store/edge.cursors",
    "incarnations": "store/incarnations",
    "consumers": "store/consumers",
    "audit": "store/audit",
    "edge.checkpoint": "store/edge.checkpoint",
    "edge.published": "store/edge.published",
    "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/": "store/transaction/redolog/*/0/*",
    "transaction/CURRENT": "store/transaction/CURRENT",
    "transaction/generation-NNNNNN/statetable/0/": GENERATION + "statetable/0/*",
    "transaction/generation-NNNNNN/topics/<topic_no>/<queue_id>/": GENERATION + "topics/*/*/*",
    "transaction/generation-NNNNNN/check/": GENERATION + "check/*",
    "transaction/generation-NNNNNN/proposal/": GENERATION + "proposal/*",
    "transaction/generation-NNNNNN/discard/": GENERATION + "discard/*",
    "transaction/generation-NNNNNN/quarantine/": GENERATION + "quarantine/*",
    "transaction/generation-NNNNNN/catalogue/": GENERATION + "catalogue/*",
    "job.checkpoint": "store/job.checkpoint",
    "job.published": "store/job.published",
    "job.round": "store/job.round",
    "clock.state": "clock.state",
    "clock.alert": "clock.alert",
}
#: These hold nothing.
EMPTY = {"make.lock", "edge.lock", "job.lock", "edge.wake", "job.wake", "clock.lock"}


def used(content: bytes) -> int:
    return len(content.rstrip(b"\0")) or len(content)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def swap(one: Path, other: Path) -> None:
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])


def old(path: Path, data: Path) -> None:
    older = data.with_name(data.name + "-older") / path.relative_to(data)
    if older.exists():
        shutil.copyfile(older, path)
    else:
        path.unlink()


def delete_all(files: list[Path]) -> None:
    for path in files:
        path.unlink()


def sibling(files: list[Path], path: Path, data: Path) -> Path:
    """Another file of its kind; where it is the only one, one of the same form."""
    alone = {
        "edge.checkpoint": "job.checkpoint", "job.checkpoint": "edge.checkpoint", "edge.published": "job.published",
        "job.published": "edge.published", "edge.cursors": "edge.published", "dictionary": "consumers", "consumers": "audit",
        "audit": "dictionary", "incarnations": "job.round", "job.round": "incarnations", "clock.state": "store/job.round",
    }  # fmt: skip
    others = [each for each in files if each != path]
    return others[0] if others else path.parent / alone.get(path.name, str(data / "store" / "format.json"))


Damage = Callable[[list[Path], Path], object]
DAMAGES: dict[str, Damage] = {
    "first deleted": lambda files, data: files[0].unlink(),
    "middle deleted": lambda files, data: files[len(files) // 2].unlink(),
    "last deleted": lambda files, data: files[-1].unlink(),
    "all deleted": lambda files, data: delete_all(files),
    "first emptied": lambda files, data: files[0].write_bytes(b""),
    "last emptied": lambda files, data: files[-1].write_bytes(b""),
    "first truncated": lambda files, data: files[0].write_bytes((c := files[0].read_bytes())[: used(c) // 2]),
    "last truncated": lambda files, data: files[-1].write_bytes((c := files[-1].read_bytes())[: used(c) // 2]),
    "last cut short": lambda files, data: files[-1].write_bytes((c := files[-1].read_bytes())[: used(c) - 1]),
    "flipped at the front": lambda files, data: flip(files[0], 1),
    "flipped in the middle": lambda files, data: flip(files[0], used(files[0].read_bytes()) // 2),
    "flipped at the end": lambda files, data: flip(files[-1], used(files[-1].read_bytes()) - 2),
    "first of an old copy": lambda files, data: old(files[0], data),
    "last of an old copy": lambda files, data: old(files[-1], data),
    "swapped": lambda files, data: swap(files[0], sibling(files, files[0], data)),
}
#: Only where a directory holds more than one file do these differ from the others.
OF_MANY = ("middle", "all")
#: The small store has none of these files: nothing was proposed or quarantined, and the clock was right.
ABSENT = {"transaction/generation-NNNNNN/proposal/", "transaction/generation-NNNNNN/quarantine/", "clock.alert"}


@pytest.fixture(scope="module", params=["closed", "killed"])
def made(request) -> Iterator[tuple[Path, Facts, str]]:
    """A data directory, what was acknowledged in it, and how it ended; beside it `…-older`."""
    with fast_directory() as place, pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _fd: None)
        data = place / "data"
        data.mkdir()
        yield data, make(data, clean=request.param == "closed"), request.param


def damaged(data: Path, name: str, kind: str, place: Path) -> Path | None:
    """A copy with this damage; None where it makes no difference."""
    copy = place / "data"
    for path in (copy, place / "data-older"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.wake"))
    shutil.copytree(data.with_name("data-older"), place / "data-older")
    files = sorted(copy.glob(FILES[name]))
    if len(files) < 2 and kind.startswith(OF_MANY):
        return None
    DAMAGES[kind](files, copy)
    return copy


#: What a refusal may name instead: what it was swapped with; the frame that a changed entry leads to.
ALSO = {
    "job.round": ("incarnations",),
    "dictionary": ("consumers",),
    "consumers": ("audit",),
    "audit": ("dictionary",),
    "transaction/generation-NNNNNN/topics/<topic_no>/<queue_id>/": ("commitlog",),
}


def is_named(error: StoreError, name: str) -> bool:
    """Whether a refusal tells which file it is about: it, its directory, or what it was swapped with."""
    told = [part for part in name.rstrip("/").split("/") if not part.startswith(("0", "<", "generation", "transaction"))]
    return any(part in str(error) for part in [*told, *ALSO.get(name, ()), "format.json", "redolog", "store: is not empty"])


def looked(copy: Path, facts: Facts) -> tuple[Opened, StoreError | None]:
    try:
        return look(copy, facts), None
    except StoreError as error:
        return Opened(), error


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", sorted(FILES.keys() - ABSENT))
def test_damage_is_made_good_or_named(made, name, kind):
    data, facts, _ = made
    with fast_directory() as place:
        copy = damaged(data, name, kind, place)
        if copy is None:
            return
        found, refusal = looked(copy, facts)
        if refusal is not None:
            assert is_named(refusal, name), refusal
            return
        if not found.lost or found.said:
            return
        assert damaged(data, name, kind, place) is not None
        assert verify_says(copy), f"lost and not named: {found.lost[:3]}"


def test_the_sound_store_is_sound(made):
    data, facts, _ = made
    with fast_directory() as place:
        shutil.copytree(data, place / "data", ignore=shutil.ignore_patterns("*.wake"))
        assert look(place / "data", facts) == Opened()


REBUILT: tuple[str, ...] = ("half/0/", "op/0/", "dedup/", "transaction/CURRENT", "edge.checkpoint", "job.checkpoint")
REBUILT += tuple(f"transaction/generation-NNNNNN/{name}/" for name in ("statetable/0", "check", "discard", "catalogue"))
REBUILT += ("transaction/generation-NNNNNN/topics/<topic_no>/<queue_id>/",)


@pytest.mark.parametrize("kind", ["first deleted", "last deleted", "all deleted"])
@pytest.mark.parametrize("name", REBUILT)
def test_what_is_derived_comes_again_when_it_was_deleted(made, name, kind):
    """The same outcomes, places and offsets; no refusal."""
    data, facts, _ = made
    with fast_directory() as place:
        copy = damaged(data, name, kind, place)
        assert copy is None or look(copy, facts).lost == []


def test_no_file_of_the_format_is_forgotten():
    text = FORMAT.read_text()
    table = text[text.index("## The directory") : text.index("Beside the store")]
    beside = text[text.index("Beside the store") : text.index("The directory `0` is the shard")]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`([^`]+)`", row)}
    named |= set(re.findall(r"`(clock\.\w+)`", beside))
    assert named == FILES.keys() | EMPTY
