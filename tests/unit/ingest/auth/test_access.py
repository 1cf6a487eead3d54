"""Tokens: who is let in, what he may do, what a running edge makes of a changed file, and that no secret is ever shown."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from escrow.cli import exits, main
from ingest.auth import token_file
from ingest.auth.access import ANONYMOUS, TOKEN, Access, digest_of, is_loopback, parse
from ingest.auth.grants import Grants
from ingest.errors import CannotStart, Forbidden, TokensUnusable, Unauthorized
from ingest.server import bind
from runtime.settings import load


class Clock:
    """Seconds that a test moves."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def settings_of(tmp_path, *flags):
    return load(None, [f"dataDir={tmp_path}", "listenPort=0", *flags], {})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys" / "tokens.toml"


def new(file, name="svc", produce=(), consume=(), *, operator=False, metrics=False):
    return token_file.add(file, name, produce, consume, operator=operator, metrics=metrics, made_at="2026-01-02T03:04:05Z")


def look(access, clock):
    clock.now_s += 1.0
    return access


def test_without_a_file_everybody_on_loopback_may_do_everything(tmp_path):
    access = Access(settings_of(tmp_path))
    who = access.principal(None)
    assert who.name == "anonymous"
    assert who.may_produce("any")
    who.require_send("any", "topic")
    who.require_consume("any", "group")
    assert who.operator
    assert who.metrics
    assert access.principal("Bearer nonsense") is who
    assert access.figures() == {"tokens": None, "wide": [], "problem": ""}


def test_without_a_file_nobody_beyond_loopback(tmp_path):
    with pytest.raises(Unauthorized, match="escrow token new"):
        Access(settings_of(tmp_path, "listenAddress=0.0.0.0")).principal(None)


def test_roles(tmp_path, file):
    text = new(file, produce=["orders", "pay-*"], consume=["invoices"])
    assert TOKEN.fullmatch(text)
    access = Access(settings_of(tmp_path))
    who = access.principal(f"Bearer {text}")
    assert who.name == "svc"
    assert [who.may_produce(group) for group in ("orders", "orders2", "pay-", "pay-x", "pay", "")] == [
        True, False, True, True, False, False,
    ]  # fmt: skip
    assert (who.operator, who.metrics) == (False, False)
    who.require_produce("orders")
    for refused, says in (
        (lambda: who.require_produce("x"), "token svc: may not produce for group 'x'; use a token that may .* --produce x:TOPIC"),
        (lambda: who.require_send("x", "t"), "may not send to topic 't' as group 'x'.* --produce x:t"),
        (lambda: who.require_consume("x", "c"), "may not consume topic 'x' as group 'c'.* --consume x:c"),
        (who.require_operator, "may not act as operator.* --operator"),
        (who.require_metrics, "may not read metrics.* --metrics"),
    ):
        with pytest.raises(Forbidden, match=says) as caught:
            refused()
        assert caught.value.status == 403
    second = new(file, "second", operator=True)
    operator = Access(settings_of(tmp_path)).principal(f"bearer {second}")
    assert operator.metrics, "an operator may read metrics"
    assert not operator.may_produce("orders"), "and produces for nobody"


def test_rules_name_both_sides(tmp_path, file):
    text = token_file.add(
        file, "svc", ["orders*:order-*", "pay:*"], ["order-*:billing*", "paid:audit"],
        deny_produce=["*:order-internal*", "pay:orders"], deny_consume=["order-secret", "order-x:billing2"],
        operator=False, metrics=False, made_at="2026-01-02T03:04:05Z",
    )  # fmt: skip
    who = Access(settings_of(tmp_path)).principal(f"Bearer {text}")
    for group, topic, may in (
        ("orders", "order-paid", True), ("orders2", "order-", True), ("orders", "payments", False),
        ("order", "order-paid", False), ("orders", "order-internal", False), ("pay", "anything", True),
        ("pay", "orders", False), ("pay", "order-internal-x", False),
    ):  # fmt: skip
        assert who.produce.covers(group, topic) is may, (group, topic)
    for topic, group, may in (
        ("order-paid", "billing", True), ("order-paid", "billing-eu", True), ("order-paid", "audit", False),
        ("paid", "audit", True), ("order-secret", "billing", False), ("order-x", "billing", True),
        ("order-x", "billing2", False), ("payments", "billing", False),
    ):  # fmt: skip
        assert who.consume.covers(topic, group) is may, (topic, group)
    assert [who.may_produce(group) for group in ("orders", "pay", "other")] == [True, True, False]


@pytest.mark.parametrize(
    ("allow", "deny", "may"),
    [
        ("*:billing", "secret:billing", False),
        ("*:billing", "secret:bill*", False),
        ("*:bill*", "secret:b*", False),
        ("*:billing", "secret", False),
        ("*:bill*", "secret:billing", True),
        ("*", "secret:billing", True),
        ("*:billing", "other:billing", True),
    ],
)
def test_a_topic_that_may_be_consumed_as_no_group_may_not_be_read_by_place(allow, deny, may):
    """Neither may a producer group end anything that may send to no topic."""
    assert Grants.of([allow], [deny]).covers_some("secret") is may


def test_a_group_that_is_denied_every_topic_may_not_end_either(tmp_path, file):
    text = token_file.add(
        file,
        "svc",
        ["*:*"],
        [],
        deny_produce=["payments", "hr:salaries"],
        operator=False,
        metrics=False,
        made_at="2026-01-02T03:04:05Z",
    )
    who = Access(settings_of(tmp_path)).principal(f"Bearer {text}")
    assert [who.may_produce(group) for group in ("orders", "payments", "hr")] == [True, False, True]


def test_only_escrow_writes_to_its_own_topics(tmp_path, file):
    text = new(file, produce=["*:*"])
    for who in (ANONYMOUS, Access(settings_of(tmp_path)).principal(f"Bearer {text}")):
        who.require_send("g", "DLQ")
        for topic in ("%DLQ%billing", "%SYS%audit"):
            with pytest.raises(Forbidden, match=f"'{topic}': only Escrow writes to"):
                who.require_send("g", topic)


@pytest.mark.parametrize("rule", ["", ":", "a:", ":b", "a:b:c", "a*b", "*a:b", "a b", "a:b*c", "ä"])
def test_a_rule_that_cannot_be_read_is_refused(file, rule):
    for side in ("produce", "consume", "deny_produce", "deny_consume"):
        given: dict[str, Any] = {"produce": [], "consume": [], side: [rule]}
        with pytest.raises(TokensUnusable, match=f"{side}: must be a list of "):
            token_file.add(file, "svc", **given, operator=False, metrics=False, made_at="2026-01-02T03:04:05Z")
    assert not file.exists()


def test_rules_of_one_name_keep_their_meaning_and_are_warned_about(tmp_path, file, caplog):
    text = new(file, produce=["orders", "pay:*"], consume=["invoices"])
    new(file, "narrow", produce=["a:b"])
    access = Access(settings_of(tmp_path))
    who = access.principal(f"Bearer {text}")
    who.require_send("orders", "any-topic")
    who.require_consume("invoices", "any-group")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert 'token svc: produce "orders" allows every topic: write "orders:NAME", or "orders:*"' in said[0]
    assert 'token svc: consume "invoices" allows every consumer group' in said[1]
    assert access.figures()["wide"] == ["svc"]


class Wall:
    now_s = 1_800_000_000.0

    def __call__(self):
        return self.now_s


def at(after_s):
    return datetime.fromtimestamp(Wall.now_s + after_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_token_expires_also_where_it_was_let_in_before(tmp_path, file):
    text = token_file.add(file, "svc", ["g:t"], [], operator=False, metrics=False, made_at=at(0), expires_at=at(60))
    wall = Wall()
    access = Access(settings_of(tmp_path), wall_s=wall)
    wall.now_s += 59
    who = access.principal(f"Bearer {text}")
    assert access.holder("svc", who.token_id) is access.holder("svc", "") is who
    wall.now_s += 1
    for refused in (lambda: access.principal(f"Bearer {text}"), lambda: access.holder("svc", who.token_id)):
        with pytest.raises(Unauthorized, match="has expired"):
            refused()


def test_a_rotated_token_has_two_secrets_for_a_while(tmp_path, file):
    new(file, "before", operator=True)
    first = token_file.add(file, "svc", ["g:t"], [], operator=False, metrics=False, made_at=at(0), expires_at=at(9000))
    after = new(file, "after", operator=True)
    file.write_text(file.read_text().replace('produce = ["g:t"]', '# a comment\nproduce = ["g:t"]'))
    second, old = token_file.rotate(file, "svc", old_until=at(100))
    assert old.principal.name == "svc"
    assert second.split("_")[1] == first.split("_")[1], "the id stays, and with it access keys"
    wall = Wall()
    access = Access(settings_of(tmp_path), wall_s=wall)
    assert access.principal(f"Bearer {first}") is access.principal(f"Bearer {second}")
    wall.now_s += 100
    access.principal(f"Bearer {second}").require_send("g", "t")
    assert access.principal(f"Bearer {after}").operator
    with pytest.raises(Unauthorized, match="has expired"):
        access.principal(f"Bearer {first}")
    wall.now_s += 8900
    with pytest.raises(Unauthorized, match="has expired"):
        access.principal(f"Bearer {second}")
    third, _ = token_file.rotate(file, "svc", old_until=at(99_000), expires_at=at(99_000))
    access = Access(settings_of(tmp_path), wall_s=wall)
    for text, good in ((first, False), (second, True), (third, True)):
        if good:
            assert access.principal(f"Bearer {text}").name == "svc"
        else:
            with pytest.raises(Unauthorized, match="not known here"):
                access.principal(f"Bearer {text}")
    assert [token.principal.name for token in access.tokens] == ["before", "svc", "after"]
    assert "# a comment" in file.read_text()


@pytest.mark.parametrize("field", ["expires_at", "old_until"])
@pytest.mark.parametrize("value", ['"tomorrow"', "2027-01-01", "2027-01-01T00:00:00", "7"])
def test_a_time_that_is_none_is_named(file, field, value):
    new(file)
    file.write_text(f"{file.read_text()}{field} = {value}\n")
    with pytest.raises(TokensUnusable, match=f"{field}: must be a time with its zone"):
        token_file.load(file)


def test_who_is_not_known_is_not_let_in(tmp_path, file):
    text = new(file, operator=True)
    access = Access(settings_of(tmp_path))
    other = text[:-1] + ("A" if text[-1] != "A" else "B")
    unknown_id = re.sub(r"escrow_........_", "escrow_aaaaaaaa_", text)
    for header in (
        None,
        "",
        "Bearer",
        text,
        f"Basic {text}",
        f"Bearer {text}x",
        f"Bearer {other}",
        f"Bearer {unknown_id}",
        "Bearer é",
    ):
        for _ in range(2):
            with pytest.raises(Unauthorized) as caught:
                access.principal(header)
            assert caught.value.status == 401
            assert "escrow token new" in str(caught.value) or "revoked" in str(caught.value)
            assert not re.search(r"[A-Za-z0-9_-]{43}", str(caught.value))


def test_an_unknown_id_is_compared_as_well(tmp_path, file, monkeypatch):
    text = new(file, operator=True)
    access, compared = Access(settings_of(tmp_path)), []
    import hmac

    real = hmac.compare_digest

    def compare(a, b):
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr("ingest.auth.access.hmac.compare_digest", compare)
    other = text[:-1] + ("A" if text[-1] != "A" else "E")
    for header in (f"Bearer {other}", re.sub(r"escrow_........_", "Bearer escrow_aaaaaaaa_", text)):
        with pytest.raises(Unauthorized):
            access.principal(header)
    assert len(compared) == 4, "with the new secret and with the old one"
    assert {len(part) for pair in compared for part in pair} == {32}


def test_a_change_counts_within_a_second(tmp_path, file):
    clock = Clock()
    access = Access(settings_of(tmp_path), clock)
    text = new(file, operator=True)
    assert access.principal(None).name == "anonymous", "the file is looked at once a second"
    with pytest.raises(Unauthorized):
        look(access, clock).principal(None)
    assert access.principal(f"Bearer {text}").name == "svc"
    second = new(file, "other", metrics=True)
    token_file.revoke(file, "svc")
    with pytest.raises(Unauthorized, match="revoked"):
        look(access, clock).principal(f"Bearer {text}")
    assert access.principal(f"Bearer {second}").name == "other"


def test_a_broken_file_leaves_the_old_tokens_and_is_logged_once(tmp_path, file, caplog):
    clock = Clock()
    text = new(file, operator=True)
    access = Access(settings_of(tmp_path), clock)
    good = file.read_text()
    with caplog.at_level(logging.WARNING, "escrow.edge"):
        for content in (f'[[token]]\nname = "{text}', None):
            file.write_text(content) if content else file.unlink()
            caplog.clear()
            for _ in range(3):
                assert look(access, clock).principal(f"Bearer {text}").name == "svc"
                with pytest.raises(Unauthorized):
                    access.principal(None)
            assert len(caplog.records) == 1
            assert str(file) in access.problem
            assert access.figures()["problem"] == access.problem
            assert text not in caplog.text + access.problem
    file.write_text(good)
    assert look(access, clock).problem == ""


def test_a_file_without_tokens_lets_nobody_in(tmp_path, file):
    text = new(file, operator=True)
    token_file.revoke(file, "svc")
    assert file.exists()
    access = Access(settings_of(tmp_path))
    for header in (None, f"Bearer {text}"):
        with pytest.raises(Unauthorized):
            access.principal(header)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("\n[[token]]", "\n[token]"), "only \\[\\[token\\]\\] entries"),
        (('name = "svc"', 'name = "a b"'), "token 1: name: must be 1 to 64"),
        (("operator = true", "operator = 1"), r"token 1 \(svc\): operator: must be true or false"),
        (("operator = true", "admin = true"), "admin: no such field"),
        (("produce = []", 'produce = ["a*b"]'), "produce: must be a list of GROUP:TOPIC; a \\*"),
        (("produce = []", 'produce = "a"'), "produce: must be a list"),
        (("sha256 = ", "sha256 = 7 #"), "sha256: must be 64"),
        (("\n[[token]]", "\nx = 1\n[[token]]"), "x: only"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(tmp_path, file, change, says):
    new(file, operator=True)
    file.write_text(file.read_text().replace(*change))
    with pytest.raises(TokensUnusable, match=says) as caught:
        Access(settings_of(tmp_path))
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_name_twice(file):
    new(file, operator=True)
    with pytest.raises(TokensUnusable, match="twice"):
        new(file, operator=True)
    assert len(parse(file.read_text(), "")) == 1


def test_the_file_holds_hashes_and_only_its_owner_may_read_it(file):
    text = new(file, operator=True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert text.split("_", 2)[2] not in file.read_text()
    assert digest_of(text).hex() in file.read_text()


def test_comments_of_people_stay(file):
    new(file, "first", operator=True)
    file.write_text("# ours\n" + file.read_text() + "# the second\n")
    new(file, "second", operator=True)
    new(file, "third", operator=True)
    token_file.revoke(file, "second")
    assert [token.principal.name for token in token_file.load(file).values()] == ["first", "third"]
    assert file.read_text().startswith("# ours\n")
    with pytest.raises(TokensUnusable, match="0 tokens have the name or id 'second'"):
        token_file.revoke(file, "second")


def test_the_hot_path_is_cheap(tmp_path, file):
    """About a microsecond: generous here, this machine may be busy."""
    header = f"Bearer {new(file, operator=True)}"
    access = Access(settings_of(tmp_path))
    best_s = min(_seconds(access, header) for _ in range(5))
    assert best_s / 10_000 < 20e-6


def _seconds(access, header):
    began_s = time.perf_counter()
    for _ in range(10_000):
        access.principal(header)
    return time.perf_counter() - began_s


def test_a_token_among_many_blanks_is_looked_up_each_time(tmp_path, file):
    text = new(file, operator=True)
    access = Access(settings_of(tmp_path))
    for blanks in range(1, 200, 20):
        assert access.principal(f"Bearer {' ' * blanks}{text}").operator
    assert access._cache
    assert max(map(len, access._cache)) <= 128


def test_the_cache_is_bounded(tmp_path, file, monkeypatch):
    monkeypatch.setattr("ingest.auth.access.CACHE_MAX", 3)
    text = new(file, operator=True)
    access = Access(settings_of(tmp_path))
    for number in range(10):
        access.principal(f"Bearer {' ' * number}{text}")
        assert len(access._cache) <= 3


# --- listening ---
@pytest.mark.parametrize(
    ("address", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False)]
)
def test_loopback(address, loopback):
    assert is_loopback(address) == loopback


def test_beyond_loopback_only_with_tokens(tmp_path, file):
    settings = settings_of(tmp_path, "listenAddress=0.0.0.0")
    with pytest.raises(CannotStart, match=r"reachable from elsewhere.*escrow token new"):
        bind(settings, Access(settings))
    new(file, operator=True)
    bind(settings, Access(settings)).close()
    token_file.revoke(file, "svc")
    with pytest.raises(CannotStart, match="no tokens in"):
        bind(settings, Access(settings))


def test_tokens_file_elsewhere(tmp_path):
    settings = settings_of(tmp_path, f"tokensFile={tmp_path / 'other.toml'}")
    text = new(settings.tokens_file, operator=True)
    assert (tmp_path / "other.toml").exists()
    assert Access(settings).principal(f"Bearer {text}").name == "svc"


# --- the command ---
def run(capsys, *words, code=exits.OK):
    assert main(["token", *map(str, words)]) == code
    return capsys.readouterr()


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = ["--data", tmp_path / "data"]
    assert "does not exist" in run(capsys, "list", *data).out
    said = run(capsys, "new", "svc", "--produce", "orders*", "--produce", "x", "--consume", "y", *data)
    assert TOKEN.fullmatch(said.out.strip()), "the token alone, to be piped"
    assert "cannot be shown again" in said.err
    assert "first token" in said.err
    assert 'produce "orders*" allows every topic' in said.err
    assert "first token" not in run(capsys, "new", "ops", "--operator", *data).err
    listed = run(capsys, "list", *data).out
    assert "svc" in listed
    assert "produce orders* x; consume y" in listed
    assert said.out.strip() not in listed
    rows = [json.loads(line) for line in run(capsys, "list", "--json", *data).out.splitlines()]
    assert [(row["name"], row["operator"]) for row in rows] == [("svc", False), ("ops", True)]
    rotated = run(capsys, "rotate", "svc", "--overlap", "1h", "--expires", "90d", *data)
    assert TOKEN.fullmatch(rotated.out.strip())
    assert rotated.out != said.out
    assert "the old secret of svc counts until" in rotated.err
    assert "; expires 20" in run(capsys, "list", *data).out
    assert "revoked svc" in run(capsys, "revoke", rows[0]["id"], *data).out
    assert "escrow token list" in run(capsys, "revoke", "svc", *data, code=exits.ERROR).err
    assert os.stat(tmp_path / "data" / "keys" / "tokens.toml").st_mode & 0o777 == 0o600


def test_the_command_refuses_what_is_of_no_use(tmp_path, capsys):
    data = ["--data", tmp_path]
    assert "without a role" in run(capsys, "new", "svc", *data, code=exits.ERROR).err
    assert "name: must be" in run(capsys, "new", "a b", "--operator", *data, code=exits.ERROR).err
    assert "produce: must be" in run(capsys, "new", "a", "--produce", "a*b", *data, code=exits.ERROR).err
    assert not (tmp_path / "keys" / "tokens.toml").exists()


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["token", "--help"])
    said = capsys.readouterr().out
    assert "Authorization: Bearer" in said
    assert "escrow token revoke" in said
