"""Sealed ids: nobody can name a half that he was not given."""

from __future__ import annotations

import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

import pytest

from ingest.errors import BadId, KeysUnusable
from ingest.ids import ID_CHARACTERS, Place, Sealer, load_keys, rotate

STORE, OTHER_STORE = "00112233445566ff", "ff112233445566ff"
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def test_an_id_opens_to_what_was_sealed():
    sealer = Sealer([KEY], STORE)
    for half_offset, group_no, shard in ((0, 0, 0), (2**62, 2**31 - 1, 65_535), (12_345, 7, 1)):
        id = sealer.seal(half_offset, group_no, shard)
        assert len(id) == ID_CHARACTERS
        assert sealer.open(id) == Place(shard, half_offset, group_no)


def test_many_are_sealed_as_one_by_one():
    sealer = Sealer([KEY, OTHER_KEY], STORE)
    rows: list[Sequence[int]] = [range(first, first + count) for first in (0, 1, 6, 7, 2**40 + 3) for count in (1, 7, 8, 9, 100)]
    for half_offsets in [*rows, [5] * 12, [*range(20), 3], [9, *range(30)], range(30)[::-1], range(0, 60, 2)]:
        sealed = sealer.seal_all(half_offsets, 70_000)
        assert list(sealed) == [(sealer.seal(half_offset, 70_000), half_offset) for half_offset in half_offsets]
        assert [sealer.open(id) for id, _ in sealed] == [Place(0, half_offset, 70_000) for half_offset in half_offsets]
        assert list(sealed[1:-1]) == list(sealed)[1:-1]
        assert sealed[-1] == list(sealed)[-1]


def test_many_are_opened_as_one_by_one():
    sealer, old = Sealer([KEY, OTHER_KEY], STORE), Sealer([OTHER_KEY], STORE)
    good = [sealer.seal(half_offset, 7) for half_offset in (*range(9, 30), 2**40, 3, 3, 2**62, 0)]
    with_fill = next(id for id in (sealer.seal(half_offset, 7) for half_offset in range(100_000)) if "AA" in id[20:50])
    at = with_fill.index("AA", 20)
    odd = [
        sealer.seal(5, 8), sealer.seal(5, 7, 1), old.seal(5, 7),
        Sealer([KEY], OTHER_STORE).seal(5, 7), Sealer([b"x" * 32], STORE).seal(5, 7),
        good[0][:-1] + "B", good[0] + "A", good[0][:-1], "", "é" * 58, "!" * 58, "A" * 58, good[0][:30] + "\n" + good[0][31:],
    ]  # fmt: skip
    rows = [good, good[:7], *[[*good[:9], id, *good[9:]] for id in odd], [*odd, *odd], ["A" * 58] * 9, ["!" * 58] * 60]
    rows += [[*good[:9], with_fill[:at], with_fill[at + 2 :]], [*good[:9], with_fill[:at], f"{with_fill[at + 2 :]}AA{good[9]}"]]
    for ids in rows:
        assert [_told(opened) for opened in sealer.open_all(ids)] == [_told(_opened(sealer, id)) for id in ids]


def _opened(sealer, id):
    try:
        return sealer.open(id)
    except BadId as error:
        return error


def _told(opened):
    return str(opened) if isinstance(opened, BadId) else opened


def test_a_seal_is_of_no_use_for_a_neighbour():
    """Four halves share a computation, not a seal; nor does a seal hold for another group or shard."""
    sealer = Sealer([KEY], STORE)
    raws = [urlsafe_b64decode(sealer.seal(*place) + "==") for place in ((4, 1), (5, 1), (6, 1), (7, 1), (4, 2), (8, 1), (4, 1, 1))]
    assert len({raw[27:] for raw in raws}) == len(raws)
    for raw in raws:
        for other in raws:
            mixed = urlsafe_b64encode(raw[:27] + other[27:]).rstrip(b"=").decode()
            assert _opens(sealer, mixed) == (raw is other)


def test_every_flipped_bit_is_found():
    sealer = Sealer([KEY], STORE)
    raw = urlsafe_b64decode(sealer.seal(5, 1) + "==")
    for bit in range(len(raw) * 8):
        forged = bytearray(raw)
        forged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadId):
            sealer.open(urlsafe_b64encode(bytes(forged)).rstrip(b"=").decode())


def test_one_half_has_one_spelling():
    """The last character has bits to spare; a reader that ignored them would take several ids for one half."""
    sealer = Sealer([KEY], STORE)
    id = sealer.seal(5, 1)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    opened = [last for last in alphabet if _opens(sealer, id[:-1] + last)]
    assert opened == [id[-1]]


def _opens(sealer, id):
    return isinstance(_opened(sealer, id), Place)


@pytest.mark.parametrize("id", ["", "x", "a" * 57, "a" * 59, "!" * 58, "é" * 58, "A" * 58, "a b" * 19 + "a"])
def test_junk_is_refused(id):
    with pytest.raises(BadId, match="id: "):
        Sealer([KEY], STORE).open(id)


def test_ids_of_another_store_and_another_key_are_refused():
    with pytest.raises(BadId, match="another store"):
        Sealer([KEY], STORE).open(Sealer([KEY], OTHER_STORE).seal(1, 1))
    with pytest.raises(BadId, match="a key that this edge does not have"):
        Sealer([KEY], STORE).open(Sealer([OTHER_KEY], STORE).seal(1, 1))


def test_old_keys_stay_valid():
    old = Sealer([OTHER_KEY], STORE).seal(1, 1)
    both = Sealer([KEY, OTHER_KEY], STORE)
    assert both.open(old).half_offset == 1
    assert both.seal(1, 1) != old
    assert both.seal(1, 1) == Sealer([KEY], STORE).seal(1, 1)


def test_a_key_is_made_at_the_first_start(tmp_path):
    file = tmp_path / "keys" / "ids.keys"
    keys, notice = load_keys(file)
    assert len(keys[0]) == 32
    assert "back it up" in notice
    assert str(file) in notice
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_keys(file) == (keys, "")


def test_rotation_keeps_the_old_key(tmp_path):
    file = tmp_path / "ids.keys"
    (old,), _ = load_keys(file)
    rotate(file)
    keys, notice = load_keys(file)
    assert keys[1] == old
    assert keys[0] != old
    assert notice == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_keys_from_the_settings(tmp_path):
    keys, notice = load_keys(tmp_path / "none", f"{KEY.hex()}, {OTHER_KEY.hex()}")
    assert keys == [KEY, OTHER_KEY]
    assert notice == ""
    assert not (tmp_path / "none").exists()


def test_a_key_file_that_others_can_read_is_told(tmp_path):
    file = tmp_path / "ids.keys"
    file.write_text(KEY.hex())
    file.chmod(0o644)
    assert "chmod 600" in load_keys(file)[1]


@pytest.mark.parametrize(
    ("content", "says"), [("", "holds no key"), ("# nothing\n", "holds no key"), ("zz", "hexadecimal"), ("ab" * 15, "hexadecimal")]
)
def test_unusable_keys_say_why_and_do_not_show_themselves(tmp_path, content, says):
    file = tmp_path / "ids.keys"
    file.write_text(content)
    with pytest.raises(KeysUnusable, match=says) as caught:
        load_keys(file)
    assert not content.strip("# \n") or content not in str(caught.value)


def test_a_key_file_that_cannot_be_read(tmp_path):
    with pytest.raises(KeysUnusable, match="give this user access"):
        load_keys(tmp_path)
