"""`escrow top`: one frame for a script, and a live view that fits whatever size the terminal has."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress

import pytest

from escrow.cli.top import DOUBT_DROPS, DOUBT_HEADS, Section, bars


def test_one_frame(shell, name):
    shell("send", name, "x", "--half", "--group", name)
    shell("send", name, "y")
    out = shell("top", "--once", COLUMNS="140", LINES="200")
    for word in ("escrow", "as of", "pending", "halves", "commits", "PENDING, THE OLDEST FIRST", "PRODUCER GROUPS", "TOPICS"):
        assert word in out
    assert "\033" not in out
    [told] = shell.json("top", "--once")
    assert told["overview"]["pending"] >= 1
    assert {"groups", "topics", "oldest"} <= set(told)


@pytest.mark.parametrize(("columns", "rows"), [(20, 5), (80, 24), (200, 60)])
def test_a_frame_fits(shell, columns, rows):
    lines = shell("top", "--once", COLUMNS=str(columns), LINES=str(rows)).splitlines()
    assert len(lines) <= rows
    assert max(len(line) for line in lines) <= columns


def test_a_narrow_frame_has_the_columns_that_matter_and_counts_all(shell, name):
    shell("send", name, "x", "--half", "--group", name)
    out = shell("top", "--once", COLUMNS="60", LINES="40")
    assert max(len(line) for line in out.splitlines()) <= 60
    assert "GROUP" in out
    [told] = shell.json("top", "--once")
    pending = told["overview"]["pending"]
    assert sum(group["pending"] for group in told["groups"]) == pending


def test_a_section_counts_what_was_not_fetched():
    rows = [(f"{number}s", number, "a-group", "a-topic", "key", "id" * 29) for number in range(20)]
    section = Section("PENDING", DOUBT_HEADS, rows, 3000, DOUBT_DROPS)
    lines = section.lines(5, 60, colour=False)
    assert lines[0] == "PENDING  (and 2,995 more)"
    assert max(map(len, lines)) <= 60
    assert lines[1].split() == ["AGE", "ATTEMPTS", "GROUP", "TOPIC", "KEY"]


def test_bars():
    assert bars([]) == bars([0, 0]) == ""
    assert bars([0, 1, 4, 8]) == " ▂▅█"


class Terminal:
    """A terminal with a size, and what was drawn on it last."""

    def __init__(self, shell, *args, size):
        self.leader, follower = pty.openpty()
        self.resize(*size)
        environ = {name: value for name, value in shell.environ.items() if name not in ("COLUMNS", "LINES")}
        command = [sys.executable, "-m", "escrow", *args]
        self.process = subprocess.Popen(
            command, stdin=follower, stdout=follower, stderr=follower, cwd=shell.cwd, env=environ, start_new_session=True
        )
        os.close(follower)
        self.drawn = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def frame(self, fits):
        """The next frame that fits."""
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            if select.select([self.leader], [], [], 0.2)[0]:
                try:
                    self.drawn += os.read(self.leader, 1 << 16).decode()
                except OSError:  # it has ended
                    break
            frames = self.drawn.split("\033[H")
            for text in frames[1:]:
                if text.endswith("\033[J") and fits(lines := re.sub(r"\033\[[0-9;]*[A-Za-z]", "", text).splitlines()):
                    return lines
        raise AssertionError(self.drawn)

    def rest(self):
        """What was drawn after the last look."""
        os.set_blocking(self.leader, False)
        with suppress(OSError):
            while data := os.read(self.leader, 1 << 16):
                self.drawn += data.decode()
        return self.drawn

    def close(self):
        code = self.process.wait(60)
        os.close(self.leader)
        return code


def test_live_resized_and_quit(shell):
    terminal = Terminal(shell, "top", "--interval", "1s", size=(100, 40))
    lines = terminal.frame(lambda lines: len(lines) > 10)
    assert max(len(line) for line in lines) <= 100
    terminal.resize(30, 8)
    lines = terminal.frame(lambda lines: len(lines) <= 8)
    assert max(len(line) for line in lines) <= 30
    os.write(terminal.leader, b"q")
    assert terminal.close() == 0


def test_ctrl_c_ends_it_and_the_terminal_is_as_it_was(shell):
    terminal = Terminal(shell, "top", size=(80, 24))
    before = termios.tcgetattr(terminal.leader)
    terminal.frame(lambda lines: True)
    assert termios.tcgetattr(terminal.leader) != before
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.wait(60) == 0
    assert terminal.rest().endswith("\033[?25h\033[?1049l")
    assert termios.tcgetattr(terminal.leader) == before
    assert terminal.close() == 0


def test_wrong_usage(refused, alone):
    assert "add --once" in refused("top")
    assert "--json belongs to --once" in refused("top", "--json")
    assert "escrow run" in alone.error("top", "--once", "--url", "http://127.0.0.1:1", code=3)
