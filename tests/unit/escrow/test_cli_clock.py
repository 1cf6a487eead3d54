"""`escrow clock`: what an operator sees and does when the wall clock has jumped."""

from __future__ import annotations

import json

import pytest

from escrow.cli import main
from streaming.clock import ALERT_FILE, ClockGuard, read_alert

NOW_MS = 1_800_000_000_000


class Hands:
    """A clock whose wall and steady time are set by hand."""

    def __init__(self):
        self.wall_ms, self.running_ms = NOW_MS, 0

    def now_ms(self):
        return self.wall_ms

    def steady_ms(self):
        return self.running_ms


@pytest.fixture
def jumped(tmp_path):
    """A guard whose wall clock has jumped by two hours."""
    clock = Hands()
    guard = ClockGuard(clock, tmp_path, NOW_MS)
    assert guard.discards_allowed()
    clock.wall_ms += 7_200_000
    assert not guard.discards_allowed()
    return guard


def test_without_an_alert_all_is_well(tmp_path, capsys):
    assert main(["clock", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no clock alert: discards go on\n"
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert "nothing to confirm" in capsys.readouterr().out


def test_an_alert_is_shown_with_its_remedy(jumped, tmp_path, capsys):
    assert main(["clock", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert said.startswith("CLOCK ALERT: the wall clock left the time since boot: discards are stopped\n")
    assert "drift:  +7,200.0 s" in said
    assert "2027-01-15 10:00:00+00:00" in said
    assert "escrow clock confirm" in said
    assert not jumped.discards_allowed(), "looking confirms nothing"


def test_confirm_lets_discards_go_on_and_the_new_time_counts(jumped, tmp_path, capsys):
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert "confirmed: the wall clock left the time since boot" in capsys.readouterr().out
    assert not (tmp_path / ALERT_FILE).exists()
    assert jumped.discards_allowed()
    jumped._clock.wall_ms -= 7_200_000  # back again is a jump too
    assert not jumped.discards_allowed()
    assert (read_alert(tmp_path / ALERT_FILE) or {})["drift_ms"] == -7_200_000


def test_flags_may_stand_before_the_word(jumped, tmp_path):
    assert main(["clock", "--data", str(tmp_path), "confirm"]) == 0
    assert jumped.discards_allowed()


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
    assert not ClockGuard(Hands(), tmp_path, NOW_MS).discards_allowed()
    assert main(["clock", "--data", str(tmp_path)]) == 1
    assert "CLOCK ALERT" in capsys.readouterr().out
    assert main(["clock", "confirm", "--data", str(tmp_path)]) == 0
    assert ClockGuard(Hands(), tmp_path, NOW_MS).discards_allowed()


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
    for word in ("escrow_clock_alert", "clockDriftMax", "timedatectl", "escrow clock confirm", "exit codes"):
        assert word in said


def test_a_clock_before_the_last_batch_is_an_alert_from_the_start(tmp_path):
    assert not ClockGuard(Hands(), tmp_path, NOW_MS + 61_000).discards_allowed()
    assert (read_alert(tmp_path / ALERT_FILE) or {})["reason"] == "the wall clock stands before the last settled batch"
