"""`escrow tx`: an operator finds what is in doubt, sees why, and settles it: one, many, or all that a filter finds."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.support.endpoint import until


@pytest.fixture
def halves(shell, name):
    """Stores halves of this test's group; their ids."""

    def send(*bodies, **options):
        flags = [word for key, value in options.items() for word in (f"--{key}", value)]
        found = shell.json("send", name, "--half", "--group", name, "--lines", *flags, stdin="\n".join(bodies))
        return [half["id"] for half in found]

    return send


@pytest.fixture
def listed(here, name):
    """Transactions of this test's group, once the edge's index has these."""

    def look(*args, count):
        found: list[dict[str, object]] = []

        def there():
            found[:] = [json.loads(line) for line in here("tx", "list", "--group", name, "--json", *args).splitlines()]
            return len(found) == count

        until(there, lambda: f"{count} wanted, {len(found)} listed")
        return found

    return look


def test_list_tells_what_is_in_doubt(shell, here, halves, listed, name):
    ids = halves("a", "b", "c", key="k1")
    [other] = halves("d", key="k2", tags="hot")
    found = listed(count=4)
    assert [each["id"] for each in found] == [*ids, other]
    assert {(each["state"], each["topic"], each["attempts"]) for each in found} == {("pending", name, 0)}
    assert [each["id"] for each in listed("--newest", count=4)] == [other, *reversed(ids)]
    assert [each["id"] for each in listed("--key", "k2", count=1)] == [other]
    assert listed("--search", "k1", count=3)
    assert listed("--search", other, count=1)
    assert listed("--since", "1h", count=4)
    assert here("tx", "list", "--group", name, "--since", "0s", "--ids") == ""
    assert here("tx", "list", "--group", name, "--age-min", "1h", "--ids") == ""
    assert shell.lines("tx", "list", "--group", name, "--ids", "--limit", "2") == ids[:2]
    done = shell.run("tx", "list", "--group", name, "--limit", "2")
    assert b"only the first 2 are shown" in done.stderr
    heads, first, second = done.stdout.decode().splitlines()
    assert heads.split() == ["ID", "STATE", "GROUP", "TOPIC", "KEY", "AGE", "ATTEMPTS"]
    assert first.split()[:5] == [ids[0], "pending", name, name, "k1"]
    assert second.startswith(ids[1])
    assert here("tx", "list", "--group", "nobody-has-this") == "no transaction matches\n"


def test_pages_are_put_together(shell, halves, listed, name):
    ids = halves(*(f"m{number}" for number in range(1234)))
    listed("--all", count=1234)
    assert shell.lines("tx", "list", "--group", name, "--ids", "--all") == ids
    assert shell.lines("tx", "list", "--group", name, "--ids", "--limit", "1100") == ids[:1100]


def test_show_and_history(shell, halves, name):
    [id] = halves("body", key="k")
    shell("tx", "commit", id, "--reason", "because\nof \x1b[31mthis")
    shown = shell("tx", "show", id)
    assert f"transaction {id}" in shown
    for word in (
        "COMMITTED",
        f"group      {name}",
        "key        k",
        "prepared by producer",
        "committed by operator",
        "because\\nof \\x1b[31mthis",
    ):
        assert word in shown
    assert "\x1b" not in shown
    assert [event["event"] for event in shell.json("tx", "history", id)] == ["prepared", "committed"]
    [told] = shell.json("tx", "show", id)
    assert (told["state"], told["outcome"], told["key"]) == ("COMMITTED", "commit", "k")
    first, second = shell.lines("tx", "history", id)
    assert first.endswith("prepared by producer")
    assert "committed by operator" in second
    assert "404" in shell.error("tx", "show", id[:-2] + "AA")


def test_message_of_a_transaction(shell, halves):
    [id] = halves("the body", key="k", tags="hot")
    shown = shell("tx", "show", "--message", id)
    assert "the body" in shown
    [told] = shell.json("tx", "show", "--message", id)
    assert (told["message"]["text"], told["message"]["tags"]) == ("the body", "hot")


def test_commit_and_rollback_by_ids(shell, halves, name):
    first, second, third = halves("1", "2", "3")
    out = shell.lines("tx", "commit", first, second, "--reason", "paid")
    assert out[:2] == [f"{first}  accepted", f"{second}  accepted"]
    assert out[2].startswith("commit: 2 accepted (audit ")
    *results, counts = shell.json(
        "tx", "rollback", "-", "--reason", "late", stdin=f"{second}  with more words\n\n{third}\n", code=1
    )
    assert [each["result"] for each in results] == ["conflict", "accepted"]
    assert counts["counts"] == {"accepted": 1, "queued": 0, "already": 0, "conflict": 1, "refused": 0}
    assert shell.lines("tx", "commit", first, "--reason", "again")[0].startswith(f"{first}  already")
    assert shell.lines("tx", "commit", "nonsense", "--reason", "x", code=1)[0].startswith("nonsense  refused: unknown id")
    assert sorted(shell.lines("consume", name)) == ["1", "2"]


def test_by_a_filter_with_a_dry_run_first(shell, halves, listed, name):
    halves(*"abcde", key="bad")
    [kept] = halves("f", key="good")
    listed(count=6)
    chosen = ("tx", "rollback", "--group", name, "--key", "bad", "--reason", "bad ones")
    out = shell(*chosen, "--dry-run")
    assert "dry run: rollback would be tried on 5; nothing was done" in out
    assert out.count("would be accepted") == 5
    assert "add --yes" in shell.error(*chosen)  # nobody could be asked
    listed(count=6)
    *_, counts = shell.json(*chosen, "--yes")
    assert (counts["matched"], counts["counts"]["accepted"], counts["dry_run"]) == (5, 5, False)
    assert [each["id"] for each in listed(count=1)] == [kept]
    assert "rollback: nothing to do" in shell(*chosen, "--yes") or "tried on 0" in shell(*chosen, "--yes")


def test_a_person_is_asked(shell, halves, listed, name):
    """On a terminal: for the reason, and for a yes."""
    halves(*"abc")
    listed(count=3)

    def typed(*answers, code):
        leader, follower = pty.openpty()
        os.write(leader, "".join(f"{answer}\n" for answer in answers).encode())
        command = [sys.executable, "-m", "escrow", "tx", "rollback", "--group", name]
        with subprocess.Popen(
            command, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=shell.cwd, env=shell.environ
        ) as asked:
            out, err = asked.communicate(timeout=60)
        os.close(leader)
        os.close(follower)
        assert asked.returncode == code, (out, err)
        return out, err

    out, err = typed("a reason", "no", code=2)
    assert ("Reason for rollback" in err, "rollback 3? Type yes" in err, "nothing was done" in err) == (True, True, True)
    listed(count=3)
    out, err = typed("a better reason", "yes", code=0)
    assert "rollback: 3 accepted" in out
    assert shell.json("tx", "audit", "--limit", "1")[0]["reason"] == "a better reason"


def test_check_asks_at_once(shell, service, halves, listed, name):
    import escrow

    [id] = halves("who am I", immunity="3600")
    asked: list[str] = []

    def answer(check):
        asked.append(check.id)
        return escrow.Outcome.COMMIT

    with escrow.Producer(service.url, name, on_check=answer):
        until(lambda: any(group["group"] == name and group["members"] for group in shell.json("groups")))
        assert shell.lines("tx", "check", id, "--reason", "it takes too long")[0].startswith(f"{id}  accepted")
        until(lambda: asked == [id])
        until(lambda: shell.json("tx", "show", id)[0]["state"] == "COMMITTED")
    assert shell.lines("consume", name) == ["who am I"]


def test_the_audit_log_says_who_did_what_and_why(shell, halves):
    [id] = halves("x")
    shell("tx", "rollback", id, "--reason", "ticket 17")
    [record] = shell.json("tx", "audit", "--limit", "1")
    assert (record["action"], record["reason"], record["matched"], record["ids"]) == ("rollback", "ticket 17", 1, [id])
    heads, line = shell.lines("tx", "audit", "--limit", "1")
    assert heads.split() == ["NO", "WHEN", "WHO", "ACTION", "TARGET", "RESULT", "REASON"]
    assert line.endswith("ticket 17")


def test_wrong_usage(refused):
    for args, words in (
        (("tx", "commit", "id"), "needs a reason"),
        (("tx", "commit", "id", "--reason", "x" * 501), "at most 500"),
        (("tx", "commit", "--reason", "x"), "name ids"),
        (("tx", "commit", "id", "--group", "g", "--reason", "x"), "not both"),
        (("tx", "commit", "--state", "committed", "--reason", "x"), "invalid choice"),
        (("tx", "list", "--age-min", "old"), "is not a length of time"),
        (("tx",), "usage: escrow tx"),
    ):
        assert words in refused(*args)


def test_groups_and_topics(shell, service, halves, listed, name):
    import escrow

    halves("a", "b")
    listed(count=2)
    [group] = [each for each in shell.json("groups") if each["group"] == name]
    assert (group["pending"], group["members"]) == (2, [])
    assert name in shell("groups", "--alone", code=1)
    with escrow.Producer(service.url, name, on_check=lambda check: None, member="me"):
        until(lambda: f"{name}  me" in shell("groups", "--members").replace("   ", "  "))
    shell("send", name, "--lines", stdin="1\n2\n3")
    shell("consume", name, "--group", "readers", "--max", "1")

    def consumers():
        [topic] = shell.json("topics", name)
        return topic["messages"] == 3 and [(each["group"], each["lag"]) for each in topic["consumers"]] == [("readers", 2)]

    until(consumers)
    heads, line = shell.lines("topics", name)
    assert heads.split() == ["TOPIC", "QUEUES", "MESSAGES", "CONSUMER", "GROUP", "LAG", "IN", "HAND", "DEAD"]
    assert line.split() == [name, "4", "3", "readers", "2", "0", "0"]
    assert "no such topic" in shell.error("topics", "nobody-has-this")
