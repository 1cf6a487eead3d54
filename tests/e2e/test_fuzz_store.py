"""That `make fuzz-store` would notice, and what it found."""

from __future__ import annotations

import random
import shutil

import pytest

from store.messages import Message
from tests.campaigns.fuzz_store.campaign import Campaign
from tests.campaigns.fuzz_store.damage import Vandal, category
from tests.campaigns.fuzz_store.history import History
from tests.campaigns.fuzz_store.judge import Case, Wrong, check_store, check_verify, read_log
from tests.support.seeds import SEED, fast_directory
from tests.support.service import SMALLEST, Service


def story(root, seed=11):
    return History(root, root.with_name("snapshot"), seed).play()


def test_a_seed_makes_the_same_history_and_the_same_damage_again(tmp_path):
    found = []
    for number in range(2):
        place = tmp_path / str(number)
        place.mkdir()
        facts = story(place / "store")
        damage = Vandal(place / "store", place / "snapshot", random.Random(5)).strike()
        found.append((sorted(facts.halves), sorted(facts.releases), [half.body for half in facts.halves.values()], damage))
    assert found[0] == found[1]


def test_the_judge_passes_a_sound_store(tmp_path):
    facts = story(tmp_path / "store")
    case = Case(tmp_path / "store", facts, [], read_log(tmp_path / "store"))
    check_verify(case)
    check_store(case, tmp_path / "store")


def lose_a_half(facts):
    facts.halves[max(facts.halves) + 1] = next(iter(facts.halves.values()))


def change_a_body(facts):
    facts.halves[max(facts.halves)].body = b"another"


def end_otherwise(facts):
    half = facts.halves[max(facts.halves)]
    half.state = half.state % 5 + 1


def lose_a_release(facts):
    place, release = next(iter(facts.releases.items()))
    facts.releases[place[0], 1 << 20] = release


def move_a_release(facts):
    facts.releases[next(iter(facts.releases))].body = b"another"


def rename_a_topic(facts):
    facts.topics = {name + "x": number for name, number in facts.topics.items()}


@pytest.mark.parametrize("change", [lose_a_half, change_a_body, end_otherwise, lose_a_release, move_a_release, rename_a_topic])
def test_the_judge_notices(tmp_path, change):
    facts = story(tmp_path / "store")
    assert facts.releases
    change(facts)
    case = Case(tmp_path / "store", facts, [], read_log(tmp_path / "store"))
    with pytest.raises(Wrong):
        check_store(case, tmp_path / "store")


@pytest.mark.parametrize("part", range(4))
def test_some_hundred_damaged_stores(part):
    """Another 80 each time; `make fuzz-store SEED=…` plays one again."""
    with fast_directory() as place:
        outcome = Campaign(place, SEED).run(80, first=80 * part)
    assert not outcome.wrongs, f"SEED={SEED}\n" + "\n".join(outcome.wrongs)
    assert outcome.cases == 80


def test_files_are_told_apart():
    assert category("commitlog/00000000000000000000") == "commitlog"
    assert category("transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/0") == "redolog"
    assert category("transaction/generation-000001/topics/0/0/0") == "topics"
    assert category("transaction/CURRENT") == "CURRENT"
    assert category("dictionary") == "dictionary"


# --- what it found --------------------------------------------------------------------------------------------------------------
def killed(root):
    """A store with five halves, one of them committed, as a kill leaves it."""
    service = Service(root, SMALLEST)
    halves = service.send(*[b"%d" % number for number in range(5)])
    service.commit(halves[0])
    service.edge.wait(service.edge.append_messages([Message("orders", "paid", b"m")], service.now_ms).ticket)
    service.crash()
    return halves


@pytest.mark.parametrize("slot", [4, 5, 7])
def test_a_published_number_that_cannot_be_is_passed_over(tmp_path, slot):
    killed(tmp_path / "store")
    path = tmp_path / "store" / "edge.published"
    content = bytearray(path.read_bytes())
    content[8 * slot + 5] ^= 1
    path.write_bytes(content)
    with Service(tmp_path / "store", SMALLEST) as service:
        assert (service.edge.half_end, service.edge.op_end, service.edge.half_begin) == (5, 2, 0)
        if slot != 4:
            assert "ignored" in service.edge.recovery.damage[0][2]
        assert service.send_one() == 5
        assert service.commit(1, 5)[1].verdict.value == "accepted"


def test_marks_behind_the_last_half_are_nobodys_after_a_kill(tmp_path):
    killed(tmp_path / "store")
    path = tmp_path / "store" / "ends" / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[5:9] = b"\x02\x03\x02\x03"
    path.write_bytes(content)
    with Service(tmp_path / "store", SMALLEST) as service:
        half = service.send_one()
        assert half == 5
        assert service.commit(half)[0].verdict.value == "accepted"
    shutil.rmtree(tmp_path / "store")
