"""`escrow clock`: what an operator sees and does when the wall clock has jumped."""

from __future__ import annotations

import json

import pytest

from escrow.cli import main
from store.guarded_clock import ALERT_FILE, GuardedClock, read_alert
from tests.support.hand_clock import START_MS, HandClock


@pytest.fixture
def jumped(tmp_path):
    """A guarded clock whose wall clock has jumped by two hours."""
    source = HandClock()
    clock = GuardedClock(source, tmp_path)
    assert clock.deletes_allowed()
    source.jump(7_200)
    assert not clock.deletes_allowed()
    return clock


def test_without_an_alert_all_is_well(tmp_path, capsys):
    assert main(["clock", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no clock alert: discards and retention go on\n"
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert "nothing to confirm" in capsys.readouterr().out


def test_an_alert_is_shown_with_its_remedy(jumped, tmp_path, capsys):
    assert main(["clock", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("CLOCK ALERT: the wall clock left the time since boot: nothing is discarded or deleted\n")
    assert "drift:  +7,200.0 s" in said
    assert "2027-01-15 10:00:00+00:00" in said
    assert "escrow clock confirm" in said
    assert not jumped.deletes_allowed(), "looking confirms nothing"


def test_confirm_lets_discards_go_on_and_the_new_time_counts(jumped, tmp_path, capsys):
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert "confirmed: the wall clock left the time since boot" in capsys.readouterr().out
    assert not (tmp_path / ALERT_FILE).exists()
    assert jumped.deletes_allowed()
    jumped._source.jump(-7_200)  # back again is a jump too
    assert not jumped.deletes_allowed()
    assert (read_alert(tmp_path / ALERT_FILE) or {})["drift_ms"] == -7_200_000


def test_flags_may_stand_before_the_word(jumped, tmp_path):
    assert main(["clock", "--data", str(tmp_path), "confirm"]) == 0
    assert jumped.deletes_allowed()


def test_for_programs(jumped, tmp_path, capsys):
    assert main(["clock", "--json", "--data", str(tmp_path)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["alert"], told["drift_ms"], told["file"]) == (True, 7_200_000, str(tmp_path / ALERT_FILE))
    main(["clock", "confirm", "--data", str(tmp_path)])
    capsys.readouterr()
    assert main(["clock", "--json", "--data", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["alert"] is False


@pytest.mark.parametrize("content", ["", "[]", "{", "a note of my own"])
def test_an_alert_that_somebody_else_wrote_is_one(tmp_path, capsys, content):
    (tmp_path / ALERT_FILE).write_text(content)
    assert not GuardedClock(HandClock(), tmp_path).deletes_allowed()
    assert main(["clock", "--data", str(tmp_path)]) == 1
    assert "CLOCK ALERT" in capsys.readouterr().out
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert GuardedClock(HandClock(), tmp_path).deletes_allowed()


def test_a_data_directory_that_is_not_there(tmp_path, capsys):
    for words in (["clock"], ["clock", "confirm"]):
        assert main([*words, "--data", str(tmp_path / "nowhere")]) == 2
        assert "no such data directory: name it with --data" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_the_help_teaches(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["clock", "--help"])
    said = capsys.readouterr().out
    assert caught.value.code == 0
    for word in ("escrow_clock_alert", "clockDriftMax", "clockGrace", "timedatectl", "escrow clock confirm", "exit codes"):
        assert word in said


def test_a_clock_before_the_last_batch_is_an_alert_from_the_start(tmp_path):
    assert not GuardedClock(HandClock(), tmp_path, last_ms=START_MS + 61_000).deletes_allowed()
    assert (read_alert(tmp_path / ALERT_FILE) or {})["reason"] == "the wall clock stands before the last time known here"


def test_a_clock_that_is_back_needs_nobody(jumped, tmp_path, capsys):
    jumped._source.jump(-7_200)
    assert jumped.deletes_allowed()
    assert main(["clock", "--data", str(tmp_path)]) == 0


def test_a_wait_after_a_start_of_the_machine_is_shown(tmp_path, capsys):
    from runtime.clock import SystemClock, this_boot

    before_ms = SystemClock().now_ms() - 86_400_000
    clock = GuardedClock(SystemClock(), tmp_path, boot=this_boot(), last_ms=before_ms)
    assert not clock.deletes_allowed()
    assert main(["clock", "--data", str(tmp_path)]) == 0
    assert "the machine was started, and nothing is discarded or deleted for 3," in capsys.readouterr().out
    assert main(["clock", "--json", "--data", str(tmp_path)]) == 0
    assert 3_000 < json.loads(capsys.readouterr().out)["held_s"] <= 3_600
