"""Who is there, with a clock that the test moves; and access keys: whose signature is it?"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from escrow.cli import exits, main
from ingest.auth import access_keys, token_file
from ingest.auth.access import ANONYMOUS, Access, Principal
from ingest.auth.access_keys import Key, Signatures
from ingest.auth.grants import EVERYTHING
from ingest.errors import TokensUnusable, Unauthorized
from ingest.rocketmq import clients as module
from ingest.rocketmq import messaging_pb2 as pb
from ingest.rocketmq import named
from ingest.rocketmq.calls import Caller
from ingest.rocketmq.clients import Clients, spell
from ingest.rocketmq.codes import Refused
from ingest.rocketmq.consuming import ConsumerCalls
from tests.support.edge_world import settings_for, world

MADE_AT = "2026-01-02T03:04:05Z"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def clients_of(w, clock):
    made = Clients(w.asked, Signatures(w.settings, Access(w.settings)), clock)
    made.start()
    try:
        yield made
    finally:
        await made.close()


def endpoints(host="127.0.0.1", scheme=pb.IPv4):
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=8081)])


# --- routes -----------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "scheme"), [("127.0.0.1", pb.IPv4), ("127.0.0.1", pb.DOMAIN_NAME), ("mq.example", pb.DOMAIN_NAME)]
)
def test_an_address_has_two_spellings_that_lead_to_the_same_place(host, scheme):
    given = endpoints(host, scheme)
    other = spell(given, 1)
    assert spell(given, 0) == given
    assert other != given
    assert (other.addresses[0].host.lower(), other.addresses[0].port) == (host, 8081)


def test_a_restarted_edge_spells_otherwise_and_a_client_with_a_stream_hears_the_same(tmp_path):
    async def play():
        told = []
        async with world(tmp_path) as w:
            for _ in range(3):
                clock = Clock()
                async with clients_of(w, clock) as clients:
                    client = clients.seen(ANONYMOUS, "c")
                    told.append(clients.endpoints_for(client, endpoints()).scheme)
                    stream = clients.open(client, ANONYMOUS, None)
                    for _ in range(3):
                        clock.now_s += 30
                        assert clients.endpoints_for(client, endpoints()).scheme == told[-1]
                    await clients.ended(stream)
                await w.restart_edge()
        assert told[0] != told[1] != told[2]

    asyncio.run(play())


def test_a_client_without_a_stream_hears_another_spelling_but_not_at_once(tmp_path):
    """Its first questions come before its stream; later ones without a stream mean that it has lost it."""

    async def play():
        clock = Clock()
        async with world(tmp_path) as w, clients_of(w, clock) as clients:
            client = clients.seen(ANONYMOUS, "c")
            first = clients.endpoints_for(client, endpoints())
            assert clients.endpoints_for(client, endpoints()) == first
            clock.now_s += 30
            assert clients.endpoints_for(client, endpoints()) != first

    asyncio.run(play())


# --- in hand ----------------------------------------------------------------------------------------------------------------------
async def handed(w, clients, client):
    await w.send(b"x")
    (found,) = await w.pull(visibility_s=600)
    clients.handed(client, "t", "c", [found.receipt])
    return found


def test_what_a_silent_client_has_in_hand_goes_to_others(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def play():
        clock = Clock()
        async with world(tmp_path) as w, clients_of(w, clock) as clients:
            client = clients.seen(ANONYMOUS, "c")
            await handed(w, clients, client)
            clock.now_s += module.SILENT_S - 1
            clients.seen(ANONYMOUS, "c")
            clock.now_s += module.SILENT_S - 1
            await asyncio.sleep(0.05)
            assert await w.pull() == []
            clock.now_s += 2
            await w.until(lambda: not client.in_hand)
            (again,) = await w.pull(wait_s=5)
            assert again.attempt == 2

    asyncio.run(play())


def test_what_was_acknowledged_is_not_given_back(tmp_path):
    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            client = clients.seen(ANONYMOUS, "c")
            found = await handed(w, clients, client)
            await w.ack(found)
            clients.done_with(client, [found.receipt])
            await clients.gone(client)
            assert await w.pull() == []

    asyncio.run(play())


def test_another_signer_with_the_same_client_id_is_another_client(tmp_path):
    """Or he could say that the other one has gone."""

    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            client = clients.seen(ANONYMOUS, "c")
            await handed(w, clients, client)
            await clients.gone(clients.seen(Principal("mallory"), "c"))
            assert await w.pull() == []
            assert clients.figures()["in_hand"] == 1

    asyncio.run(play())


# --- checks -----------------------------------------------------------------------------------------------------------------------
def test_check_requests_go_down_the_stream_and_count_when_written(tmp_path):
    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            written: list[pb.TelemetryCommand] = []

            async def write(command):
                written.append(command)

            stream = clients.open(clients.seen(ANONYMOUS, "me"), ANONYMOUS, write)
            stream.serve(["g"])
            id = await w.half(properties={"UNIQ_KEY": "own id"})
            stream.sent_half("g")
            w.round()
            await w.until(lambda: written)
            command = written[0].recover_orphaned_transaction_command
            assert command.transaction_id == id
            assert command.message.system_properties.message_id == "own id"
            await w.until(lambda: w.row(0)[1] == 1)

    asyncio.run(play())


def test_a_stream_that_breaks_costs_no_attempt_and_another_gets_the_request(tmp_path):
    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            written: list[pb.TelemetryCommand] = []

            async def write(command):
                written.append(command)

            async def broken(command):
                raise ConnectionError

            first = clients.open(clients.seen(ANONYMOUS, "first"), ANONYMOUS, broken)
            first.serve(["g"])
            await w.half()
            first.sent_half("g")
            w.round()
            await asyncio.wait_for(first.ended.wait(), 15)
            await clients.ended(first)
            clients.open(clients.seen(ANONYMOUS, "second"), ANONYMOUS, write).serve(["g"])
            await w.until(lambda: written)
            await w.until(lambda: w.row(0)[1] == 1)

    asyncio.run(play())


def test_a_stream_ends_after_the_write_that_is_under_way_and_never_cancels_it(tmp_path):
    """gRPC sends no end of a stream whose first write was cancelled."""

    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            flushed, written = asyncio.Event(), []

            async def write(command):
                await flushed.wait()
                written.append(command)

            stream = clients.open(clients.seen(ANONYMOUS, "c"), ANONYMOUS, write)
            writing = asyncio.create_task(stream.write(pb.TelemetryCommand()))
            await asyncio.sleep(0)
            stream.ended.set()
            await asyncio.sleep(0)
            writing.cancel()
            ending = asyncio.create_task(clients.ended(stream))
            assert not (await asyncio.wait({ending}, timeout=0.05))[0]
            flushed.set()
            await ending
            assert len(written) == 1

    asyncio.run(play())


def test_a_revoked_token_gets_no_more_checks(tmp_path):
    """Its stream was opened before."""

    async def play():
        file = tmp_path / "keys" / "tokens.toml"
        token_file.add(file, "other", ["h"], [], operator=False, metrics=False, made_at=MADE_AT)
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            written: list[pb.TelemetryCommand] = []

            async def write(command):
                written.append(command)

            gone = Principal("gone", EVERYTHING, EVERYTHING)  # as it was when the stream was opened
            stream = clients.open(clients.seen(gone, "c"), gone, write)
            stream.serve(["g"])
            await w.half()
            stream.sent_half("g")
            w.round()
            await asyncio.wait_for(stream.ended.wait(), 15)
            assert written == []

    asyncio.run(play())


def test_a_poll_that_waits_shows_nothing_to_a_token_that_was_revoked(tmp_path):
    async def play():
        file = tmp_path / "keys" / "tokens.toml"
        made = token_file.add(file, "short", [], ["t:c"], operator=False, metrics=False, made_at=MADE_AT)
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            access = Access(w.settings)
            signatures = Signatures(w.settings, access)
            principal = access.principal(f"Bearer {made}")
            calls, written = ConsumerCalls(w.asked, signatures, clients), list[pb.ReceiveMessageResponse]()
            request = pb.ReceiveMessageRequest(group={"name": "c"}, batch_size=1)
            request.message_queue.topic.name = "t"
            request.invisible_duration.FromSeconds(30)
            request.long_polling_timeout.FromSeconds(20)
            receiving = asyncio.create_task(
                calls.receive(Caller(principal, clients.seen(principal, "c")), request, Context(written))
            )
            await w.until(lambda: w.edge.consumption.figures()["polls_waiting"] == 1)
            token_file.revoke(file, "short")
            await w.until(lambda: not access.tokens)
            await w.send(b"secret")
            with pytest.raises(Unauthorized, match="revoked"):
                await receiving
            assert written == []
            assert [each.frame.body for each in await w.pull()] == [b"secret"]

    asyncio.run(play())


class Context:
    """The part of gRPC's that is used."""

    def __init__(self, written):
        self._written = written

    def time_remaining(self):
        return None

    async def write(self, answer):
        self._written.append(answer)


# --- signatures -------------------------------------------------------------------------------------------------------------------
NOW_S = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()


def signed(key, secret, at="20260102T030405Z"):
    sign = hmac.new(secret.encode(), at.encode(), hashlib.sha1).hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={sign}"
    return {"authorization": text, "x-mq-date-time": at}


def new_token(settings, name="orders-service"):
    """Its id."""
    made = token_file.add(settings.tokens_file, name, ["orders"], [], operator=False, metrics=False, made_at=MADE_AT)
    return made.split("_")[1]


@pytest.fixture
def guarded(tmp_path):
    """(signatures, access key, secret key) of a token."""
    settings = settings_for(tmp_path)
    pair = access_keys.add(settings.access_keys_file, "orders-service", new_token(settings))
    return Signatures(settings, Access(settings)), *pair


def test_a_good_signature_is_its_tokens_holder_whatever_the_case_of_its_digits(guarded):
    signatures, key, secret = guarded
    metadata = signed(key, secret)
    assert signatures.principal(metadata, NOW_S).name == "orders-service"
    metadata["authorization"] = metadata["authorization"][:-40] + metadata["authorization"][-40:].upper()
    assert signatures.principal(metadata, NOW_S).may_produce("orders")


def test_anything_else_is_nobody(guarded):
    signatures, key, secret = guarded
    good = signed(key, secret)
    for metadata in (
        {},
        signed(key, "another"),
        signed("unknown", secret),
        {**good, "x-mq-date-time": "20260102T030406Z"},
        {**good, "authorization": good["authorization"].replace("SHA1", "SHA2")},
        {**good, "authorization": "Bearer escrow_x"},
        {"authorization": good["authorization"]},
    ):
        with pytest.raises(Unauthorized):
            signatures.principal(metadata, NOW_S)


def test_a_signature_is_of_no_use_after_a_day(guarded):
    signatures, key, secret = guarded
    with pytest.raises(Unauthorized, match="clock"):
        signatures.principal(signed(key, secret), NOW_S + 86_400)
    with pytest.raises(Unauthorized, match="not a time"):
        signatures.principal(signed(key, secret, "yesterday"), NOW_S)


def test_a_key_dies_with_its_token(guarded, tmp_path):
    _, key, secret = guarded
    settings = settings_for(tmp_path)
    token_file.revoke(settings.tokens_file, "orders-service")
    with pytest.raises(Unauthorized, match="revoked"):
        Signatures(settings, Access(settings)).principal(signed(key, secret), NOW_S)


def test_a_key_does_not_count_for_another_token_of_the_same_name(guarded, tmp_path):
    signatures, key, secret = guarded
    holder = signatures.principal(signed(key, secret), NOW_S)
    settings = settings_for(tmp_path)
    token_file.revoke(settings.tokens_file, "orders-service")
    new_token(settings)
    again = Signatures(settings, Access(settings))
    with pytest.raises(Unauthorized, match="revoked"):
        again.principal(signed(key, secret), NOW_S)
    with pytest.raises(Unauthorized, match="revoked"):
        again.again(holder)  # a stream that was open meanwhile


def test_a_key_of_before_there_were_token_ids_counts_by_its_name(tmp_path):
    settings = settings_for(tmp_path)
    new_token(settings)
    settings.access_keys_file.write_text('[[key]]\naccess_key = "a"\nsecret_key = "s"\ntoken = "orders-service"\n')
    assert Signatures(settings, Access(settings)).principal(signed("a", "s"), NOW_S).name == "orders-service"


def test_commands_list_keys_and_leave_none_behind(tmp_path, capsys):
    def escrow(*words):
        code = main(["token", *words, "--data", str(tmp_path)])
        told = capsys.readouterr()
        return code, told.out + told.err

    file = settings_for(tmp_path).access_keys_file
    escrow("new", "svc", "--produce", "svc:*")
    access_key = escrow("access-key", "svc")[1].split()[2]
    assert access_key in escrow("access-keys")[1]
    row = json.loads(escrow("access-keys", "--json")[1])
    assert (row["access_key"], row["token"], row["in_use"]) == (access_key, "svc", True)
    assert "and 1 access keys" in escrow("revoke", "svc")[1]
    assert access_keys.load(file) == []
    file.write_text('[[key]]\naccess_key = "old"\nsecret_key = "s"\ntoken = "svc"\n')  # as earlier releases left them
    assert "its token is gone" in escrow("access-keys")[1]
    assert "removed 1 access keys" in escrow("new", "svc", "--produce", "svc:*")[1]
    assert access_keys.load(file) == []
    access_key = escrow("access-key", "svc")[1].split()[2]
    assert escrow("revoke-key", access_key)[0] == exits.OK
    assert escrow("revoke-key", access_key)[0] == exits.ERROR
    assert "no access keys" in escrow("access-keys")[1]


def test_without_tokens_everybody_on_loopback_may(tmp_path):
    settings = settings_for(tmp_path)
    assert Signatures(settings, Access(settings)).principal({}, NOW_S) is ANONYMOUS


def test_the_file_is_for_nobody_else_and_keeps_what_was_in_it(tmp_path):
    file = tmp_path / "keys" / "rocketmq.toml"
    pairs = [access_keys.add(file, "a", "aaaaaaaa"), access_keys.add(file, "b", "bbbbbbbb")]
    assert file.stat().st_mode & 0o077 == 0
    wanted = [Key(key, secret.encode(), name, name * 8) for (key, secret), name in zip(pairs, "ab", strict=True)]
    assert access_keys.load(file) == wanted
    file.write_text(f"# mine\n{file.read_text()}")
    assert access_keys.remove(file, lambda key: key.token == "a") == wanted[:1]
    assert access_keys.load(file) == wanted[1:]
    assert file.read_text().startswith("# mine\n")
    assert access_keys.remove(file, lambda key: key.token == "a") == []


@pytest.mark.parametrize(
    "text",
    [
        "[[key]",
        "other = 1",
        "key = 1",
        '[[key]]\naccess_key = "a"',
        '[[key]]\naccess_key = "a b"\nsecret_key = "s"\ntoken = "t"',
        '[[key]]\naccess_key = "a"\nsecret_key = ""\ntoken = "t"',
        '[[key]]\naccess_key = "a"\nsecret_key = "hidden"\ntoken = 1',
        2 * '[[key]]\naccess_key = "a"\nsecret_key = "hidden"\ntoken = "t"\n',
    ],
)
def test_a_file_that_cannot_be_used_is_told_without_its_secrets(text):
    with pytest.raises(TokensUnusable) as told:
        access_keys.parse(text, "rocketmq.toml")
    assert str(told.value).startswith("rocketmq.toml: ")
    assert "hidden" not in str(told.value)


def test_a_broken_file_leaves_the_keys_in_force(guarded, tmp_path):
    signatures, key, secret = guarded
    file: Path = settings_for(tmp_path).access_keys_file
    file.write_text("[[key]")
    signatures._watched._looked_at_s = 0.0
    assert signatures.principal(signed(key, secret), NOW_S).name == "orders-service"
    assert "not valid TOML" in signatures.problem


# --- groups that streams name -----------------------------------------------------------------------------------------------------
def test_invented_groups_cost_no_courier_until_they_exist(tmp_path):
    """Somebody else sends the first half of a group that a stream has named before: the stream is asked about it."""

    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:
            written: list[pb.TelemetryCommand] = []

            async def write(command):
                written.append(command)

            stream = clients.open(clients.seen(ANONYMOUS, "me"), ANONYMOUS, write)
            tasks = len(asyncio.all_tasks())
            stream.serve(["g", *(f"invented{number}" for number in range(500))])
            assert len(asyncio.all_tasks()) == tasks
            assert clients.figures()["groups_awaited"] == 501
            await w.half()
            await w.until(lambda: "g" in w.edge.live_groups())
            w.round()
            await w.until(lambda: written)
            assert clients.figures()["groups_awaited"] == 500
            await clients.ended(stream)
            assert clients.figures()["groups_awaited"] == 0

    asyncio.run(play())


def test_a_stream_and_a_signer_name_so_many_groups_and_no_more(tmp_path, monkeypatch):
    async def play():
        async with world(tmp_path) as w, clients_of(w, Clock()) as clients:

            async def write(command):
                pass

            streams = [clients.open(clients.seen(ANONYMOUS, f"c{number}"), ANONYMOUS, write) for number in range(2)]
            monkeypatch.setattr(named, "GROUPS_PER_STREAM_MAX", 4)
            monkeypatch.setattr(named, "GROUPS_PER_SIGNER_MAX", 6)
            streams[0].check(list("abcd"))
            streams[0].serve("abcd")
            streams[0].check(list("abcd"))  # the same again
            with pytest.raises(Refused, match=r"publishing\.topics: a client names 4 topics at most"):
                streams[0].check(["e"])
            with pytest.raises(Refused, match=r"publishing\.topics: all clients of .* name more than 6"):
                streams[1].check(list("abc"))
            await clients.ended(streams[0])
            streams[1].check(list("abc"))

    asyncio.run(play())
