"""`escrow dead-letters`: what a group was given too often is listed, and replayed."""

from __future__ import annotations

from tests.support.endpoint import until
from tests.support.live import live
from tests.support.shell import Shell


def test_listed_and_replayed(tmp_path):
    with live(tmp_path / "data", "maxDeliveries=1") as service:
        shell = Shell(tmp_path, {"ESCROW_URL": service.url})
        shell("send", "orders", "--lines", stdin="a\nb\nc")
        assert sorted(shell.lines("consume", "orders", "--group", "g", "--no-ack")) == ["a", "b", "c"]
        found: list[dict[str, object]] = []

        def dead():
            shell("consume", "orders", "--group", "g", "--wait", "0")
            found[:] = shell.json("dead-letters", "list", "g")
            return len(found) == 3

        until(dead, lambda: found)
        assert sorted(str(letter["text"]) for letter in found) == ["a", "b", "c"]
        assert {(letter["topic"], letter["attempts"]) for letter in found} == {("orders", 1)}
        assert len(shell.json("dead-letters", "list", "g", "--limit", "2")) == 2
        assert shell.lines("dead-letters", "list", "g")[0].split() == ["ID", "SINCE", "TOPIC", "KEY", "ATTEMPTS", "BODY"]
        assert shell("dead-letters", "replay", "g", "-", stdin=str(found[0]["id"])) == "1 will be delivered to g again\n"
        assert shell.lines("consume", "orders", "--group", "g") == [found[0]["text"]]
        assert shell.json("dead-letters", "replay", "g", "--all") == [{"replayed": 2}]  # the first one has left
        assert sorted(shell.lines("consume", "orders", "--group", "g")) == sorted(str(letter["text"]) for letter in found[1:])
        assert "one of the two" in shell.error("dead-letters", "replay", "g")
        assert shell("dead-letters", "list", "others") == "no dead letters of others\n"
