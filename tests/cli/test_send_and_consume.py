"""`escrow send` and `escrow consume`: what goes in comes out, halves wait, and nothing is taken that was not printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from base64 import b64decode


def test_a_message_goes_in_and_comes_out(shell, name):
    [place] = shell.lines(
        "send", name, "order 42", "--key", "k", "--tags", "eu", "--property", "source=shop", "--property", "n=a=b"
    )
    assert place.startswith(f"{name}/")
    [found] = shell.json("consume", name)
    assert (found["text"], found["key"], found["tags"], found["attempt"]) == ("order 42", "k", "eu", 1)
    assert found["properties"] == {"source": "shop", "n": "a=b"} | {k: v for k, v in found["properties"].items() if k.isupper()}
    assert found["transaction_id"] is None
    assert f"{name}/{found['queue_id']}@{found['queue_offset']}" == place
    assert shell("consume", name) == ""  # it was acknowledged


def test_bytes_come_back_as_they_were(shell, name, tmp_path):
    content = bytes(range(256))
    (tmp_path / "body").write_bytes(content)
    shell("send", name, "--file", "body")
    shell("send", name, stdin=b"\xff")
    found = shell.json("consume", name, "--group", "a")
    assert sorted(b64decode(each["body"]) for each in found) == sorted([content, b"\xff"])
    assert "/w==" in shell.lines("consume", name, "--group", "b")


def test_every_line_is_a_message_and_a_key_keeps_their_order(shell, name):
    lines = [f"line {number}" for number in range(1201)]
    sent = shell.json("send", name, "--lines", "--key", "one", stdin="\n".join(lines))
    assert [each["queue_offset"] for each in sent] == list(range(1201))
    assert shell.lines("consume", name, "--max", "1000") == lines[:1000]
    assert shell.lines("consume", name) == lines[1000:]


def test_a_half_is_seen_by_nobody_until_it_ends(shell, name):
    [half] = shell.json("send", name, "held", "--half", "--group", name)
    assert shell("consume", name) == ""
    shell("tx", "commit", half["id"], "--reason", "the test says so")
    [found] = shell.json("consume", name)
    assert (found["text"], found["transaction_id"]) == ("held", half["id"])


def test_half_then_commit_or_rollback(shell, name):
    [kept] = shell.json("send", name, "kept", "--half", "--then", "commit")
    [dropped] = shell.lines("send", name, "dropped", "--half", "--then", "rollback")
    assert kept["verdict"] == "accepted"
    assert dropped.endswith("accepted: ROLLED_BACK")
    assert shell.lines("consume", name) == ["kept"]


def test_no_ack_gives_back(shell, name):
    shell("send", name, "--lines", stdin="a\nb\nc")
    looked = shell.json("consume", name, "--no-ack")
    again = shell.json("consume", name)
    assert sorted(each["text"] for each in looked) == sorted(each["text"] for each in again) == ["a", "b", "c"]
    assert {each["attempt"] for each in again} == {2}


def test_a_new_group_may_begin_where_it_likes(shell, name):
    shell("send", name, "old")
    assert shell("consume", name, "--group", "late", "--from", "latest") == ""
    shell("send", name, "new")
    assert shell.lines("consume", name, "--group", "late") == ["new"]
    assert shell("consume", name, "--group", "a", "--from", "0s") == ""
    assert sorted(shell.lines("consume", name, "--group", "b", "--from", "1h")) == ["new", "old"]


def test_a_reader_that_goes_away_takes_only_what_it_got(shell, name):
    """`| head -1`: what was not printed is not acknowledged."""
    shell("send", name, "--lines", "--key", "k", stdin="\n".join(f"{n} {'x' * 8000}" for n in range(40)))
    line = f"{sys.executable} -m escrow consume {name} | head -1"
    first = subprocess.run(["sh", "-c", line], capture_output=True, timeout=60, cwd=shell.cwd, env=shell.environ, check=True)
    assert first.stdout.startswith(b"0 x")
    assert first.stderr == b""
    rest = [int(line.split()[0]) for line in shell.lines("consume", name)]
    assert rest[-1] == 39
    assert 1 <= len(rest) < 40


def test_follow_goes_on_until_it_is_interrupted(shell, name):
    command = [sys.executable, "-m", "escrow", "consume", name, "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=shell.cwd, env=shell.environ) as reader:
        assert reader.stdout is not None
        for text in ("one", "two"):
            shell("send", name, text)
            assert json.loads(reader.stdout.readline())["text"] == text
        os.kill(reader.pid, signal.SIGINT)
        assert reader.wait(60) == 0
    shell("send", name, "three")
    assert shell.lines("consume", name) == ["three"]


def test_wrong_usage_is_said_in_one_line(shell, refused, name):
    assert "topic" in shell.error("send", "a b", "x")
    for args, words in (
        (("send", name, "x", "--then", "commit"), "add --half"),
        (("send", name, "x", "--file", "y"), "not both"),
        (("send", name, "--file", "no-such-file"), "No such file"),
        (("send", name, "x", "--property", "nothing"), "NAME=VALUE"),
        (("consume", name, "--max", "0"), "from 1 on"),
        (("consume", name, "--from", "soon"), "is not a time"),
    ):
        assert words in refused(*args)
