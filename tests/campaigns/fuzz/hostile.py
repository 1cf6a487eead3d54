"""Hostile requests, made from a seed: the same (seed, number) is the same request, whatever else goes on.

A request begins as a valid one for some route and is then spoilt, once or several times, on one of these levels:

    content    a value of the body replaced, removed, repeated; nonsense in path and query; other media, tokens, headers
    bytes      bits of the encoded body flipped, pieces cut out, doubled, inserted; msgpack that declares more than there is
    framing    lengths and chunks that lie, broken heads, other versions of HTTP and other protocols, half requests

What is spoilt in its content or bytes only is still HTTP: it must be answered, one answer a request (`answers` says how many). What
is spoilt in its framing may be answered, refused or hung up on (`answers` is None).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec

GROUPS = ("orders", "stock", "readers", "q%7C|.-_")
TOPICS = ("paid", "shipped", "t", "%DLQ%readers")
MAX_REQUEST_BYTES = 256 << 10


@dataclass(slots=True)
class Pool:
    """What a client of this edge knows: its token, ids of its transactions, receipts and dead letters."""

    token: str
    ids: list[str] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Request:
    """A request before it is bytes."""

    method: str
    path: str
    query: list[tuple[str, str]] = field(default_factory=list)
    content: Any = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    media: str = "json"
    #: Instead of what path and query make.
    target: bytes | None = None
    #: Instead of what content makes.
    body: bytes | None = None


@dataclass(slots=True)
class Case:
    """What goes over one connection. `end`: read, hang up or reset; `pause_s` lies between pieces."""

    number: int
    route: str
    kind: str
    pieces: list[bytes]
    answers: int | None
    methods: list[str]
    end: str = "read"
    pause_s: float = 0.0
    requests: int = 1


ACCEPTS = (
    b"*/*", b"application/msgpack", b"text/html", b"", b"\xfe\xff", b"application/openmetrics-text; version=1.0.0; escaping=x",
    b"msgpack" * 300, b"application/openmetrics-text; version=abc", b"text/plain; version=\xb2", b"text/plain;version=1.0.0.\xe9",
    b"application/json;q=0",
)  # fmt: skip


# --- valid requests -------------------------------------------------------------------------------------------------------------
def _message(rng: random.Random, pool: Pool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "group": rng.choice(GROUPS),
        "topic": rng.choice(TOPICS[:3]),
        "text": "x" * rng.choice((0, 1, 50, 3000)),
    }
    if rng.random() < 0.5:
        made |= {"key": rng.choice("abc"), "tags": rng.choice(("", "a", "b")), "properties": {"p": "v"}}
    if rng.random() < 0.3:
        made |= {"dedup_key": f"d{rng.randrange(1000)}", "check_immunity_s": 5, "born_at_ms": 7, "flag": 1}
    if rng.random() < 0.2:
        made |= {"queue_id": rng.randrange(2)}
    return made


def _id(rng: random.Random, pool: Pool) -> str:
    if not pool.ids or rng.random() < 0.1:
        return "A" * 58
    return spoil_text(rng, rng.choice(pool.ids)) if rng.random() < 0.3 else rng.choice(pool.ids)


def _receipts(rng: random.Random, pool: Pool) -> list[str]:
    made = [rng.choice(pool.receipts or ["1-40-0-1-1"]) for _ in range(rng.randint(1, 4))]
    return [spoil_text(rng, each) if rng.random() < 0.3 else each for each in made]


def _halves(rng: random.Random, pool: Pool) -> dict[str, Any]:
    return {"messages": [_message(rng, pool) for _ in range(rng.choice((1, 1, 2, 5)))]}


def _ends(rng: random.Random, pool: Pool) -> dict[str, Any]:
    def end() -> dict[str, Any]:
        outcome = rng.choice(("commit", "rollback", "unknown"))
        return {
            "group": rng.choice(GROUPS),
            "id": _id(rng, pool),
            "outcome": outcome,
            "from_check": rng.random() < 0.5,
            "remark": "r",
        }

    return {"ends": [end() for _ in range(rng.choice((1, 1, 3)))]}


def _poll(rng: random.Random) -> list[tuple[str, str]]:
    return [("max", str(rng.choice((1, 32, 4096)))), ("wait_s", rng.choice(("0", "0.01", "0.05")))]


def _letters(rng: random.Random, pool: Pool) -> dict[str, Any]:
    return {"ids": [rng.choice([*pool.letters, "0-0", "3f-ffffffffff"]) for _ in range(rng.randint(1, 3))]}


def _topic(rng: random.Random, pool: Pool) -> str:
    return f"/v1/topics/{quote(rng.choice(TOPICS), safe='')}"


def _group(rng: random.Random, pool: Pool) -> str:
    return f"/v1/groups/{quote(rng.choice(GROUPS), safe='')}"


def _consumed(rng: random.Random) -> list[tuple[str, str]]:
    who = [("group", rng.choice(GROUPS)), ("consumer", "c")]
    return [*who, *_poll(rng), *rng.choice(([], [("tags", "a||b")], [("from", "latest")], [("visibility_s", "1")]))]


def _filter(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, tuple[Any, ...]] = {
        "state": ("pending", "discarded", "committed", "rolled_back", "quarantined", "settled", "any"),
        "group": tuple(GROUPS),
        "topic": tuple(TOPICS),
        "key": ("", "k", "k" * 300, "\x02"),
        "q": ("k", "A" * 58, "\x01", "ö"),
        "age_min_s": (0, 1, 1 << 40),
        "attempts_max": (0, 255),
        "since_ms": (0, 1 << 62),
    }
    return {name: rng.choice(fields[name]) for name in rng.sample(sorted(fields), rng.randint(0, 3))}


def _listed(rng: random.Random, pool: Pool) -> list[tuple[str, str]]:
    found = [(name, str(value)) for name, value in _filter(rng).items()]
    return [*found, ("limit", rng.choice(("1", "7", "1000"))), ("order", rng.choice(("oldest", "newest")))]


def _action(rng: random.Random, pool: Pool) -> dict[str, Any]:
    target = {"ids": [_id(rng, pool)]} if rng.random() < 0.7 else {"filter": _filter(rng), "expect": rng.randrange(3)}
    action = rng.choice(("check", "commit", "rollback", "resume"))
    return {"action": action, "reason": "r", "dry_run": rng.random() < 0.3, **target}


COOKIES = (b"escrow_session=x", b"escrow_session", b";;=;", b"\xff=\xfe", b"escrow_session=" + b"a" * 5000)
ORIGINS = (b"null", b"", b"http://127.0.0.1", b"http://[::1", b"\xff")


ROUTES: dict[str, Callable[[random.Random, Pool], Request]] = {
    "POST /v1/halves": lambda rng, pool: Request("POST", "/v1/halves", content=_halves(rng, pool)),
    "POST /v1/messages": lambda rng, pool: Request("POST", "/v1/messages", content=_halves(rng, pool)),
    "POST /v1/ends": lambda rng, pool: Request("POST", "/v1/ends", content=_ends(rng, pool)),
    "GET /v1/groups/{group}/checks": lambda rng, pool: Request(
        "GET", _group(rng, pool) + "/checks", [("member", "m"), *_poll(rng)]
    ),
    "GET /v1/transactions/{id}": lambda rng, pool: Request("GET", f"/v1/transactions/{quote(_id(rng, pool), safe='')}"),
    "GET /v1/topics/{topic}/messages": lambda rng, pool: Request("GET", _topic(rng, pool) + "/messages", _consumed(rng)),
    "GET /v1/topics/{topic}/queues": lambda rng, pool: Request(
        "GET", _topic(rng, pool) + "/queues", [("at", rng.choice(("earliest", "latest", "5", "2027-01-15T08:00:00Z")))]
    ),
    "GET /v1/topics/{topic}/queues/{queue}/messages": lambda rng, pool: Request(
        "GET",
        _topic(rng, pool) + f"/queues/{rng.choice((0, 1, 64))}/messages",
        [("queue_offset", str(rng.choice((0, 3, 1 << 40)))), ("max", "9"), ("max_bytes", "4096")],
    ),
    "POST /v1/topics/{topic}/acks": lambda rng, pool: Request(
        "POST", _topic(rng, pool) + "/acks", content={"group": rng.choice(GROUPS), "receipts": _receipts(rng, pool)}
    ),
    "POST /v1/topics/{topic}/visibility": lambda rng, pool: Request(
        "POST",
        _topic(rng, pool) + "/visibility",
        content={"group": rng.choice(GROUPS), "receipts": _receipts(rng, pool), "visibility_s": rng.choice((0, 1, 2.5))},
    ),
    "POST /v1/topics/{topic}/seek": lambda rng, pool: Request(
        "POST",
        _topic(rng, pool) + "/seek",
        content={"group": rng.choice(GROUPS), "to": rng.choice(("earliest", "latest", "5", "2027-01-15T08:00:00Z"))},
    ),
    "GET /v1/groups/{group}/dead-letters": lambda rng, pool: Request(
        "GET",
        _group(rng, pool) + "/dead-letters",
        [("max", "3"), *rng.choice(([], [("after", rng.choice(pool.letters or ["0-0"]))]))],
    ),
    "POST /v1/groups/{group}/dead-letters/replay": lambda rng, pool: Request(
        "POST", _group(rng, pool) + "/dead-letters/replay", content=_letters(rng, pool)
    ),
    "GET /v1/operator/overview": lambda rng, pool: Request("GET", "/v1/operator/overview"),
    "GET /v1/operator/transactions": lambda rng, pool: Request("GET", "/v1/operator/transactions", _listed(rng, pool)),
    "GET /v1/operator/transactions/{id}": lambda rng, pool: Request(
        "GET", f"/v1/operator/transactions/{quote(_id(rng, pool), safe='')}"
    ),
    "GET /v1/operator/tables/{table}": lambda rng, pool: Request(
        "GET",
        f"/v1/operator/tables/{rng.choice(('transactions', 'ops', 'checks', 'none'))}",
        [("max", "9"), *rng.choice(([], [("half_offset", str(rng.randrange(9)))], [("since_ms", "5"), ("state", "pending")]))],
    ),
    "POST /v1/operator/actions": lambda rng, pool: Request("POST", "/v1/operator/actions", content=_action(rng, pool)),
    "GET /v1/operator/audit": lambda rng, pool: Request(
        "GET", "/v1/operator/audit", [("limit", "3"), ("before", str(rng.randrange(9)))]
    ),
    "GET /v1/operator/groups": lambda rng, pool: Request("GET", "/v1/operator/groups"),
    "GET /v1/operator/topics": lambda rng, pool: Request("GET", "/v1/operator/topics"),
    "POST /v1/operator/topics/remove": lambda rng, pool: Request(
        "POST",
        "/v1/operator/topics/remove",
        content=rng.choice(
            (
                {"topics": [rng.choice(TOPICS)]},
                {"unused": True},
                {"unused": True, "made_by": "nobody", "dry_run": True},
                {"topics": [rng.choice(TOPICS)], "unused": True},
            )
        ),
    ),
    "POST /v1/operator/topics": lambda rng, pool: Request(
        "POST", "/v1/operator/topics", content={"topic": rng.choice(TOPICS), "queues": rng.choice((None, 1, 2, 64))}
    ),
    "GET /v1/operator/transactions/{id}/body": lambda rng, pool: Request(
        "GET", f"/v1/operator/transactions/{quote(_id(rng, pool), safe='')}/body"
    ),
    "GET /v1/operator/transactions/{id}/explain": lambda rng, pool: Request(
        "GET", f"/v1/operator/transactions/{quote(_id(rng, pool), safe='')}/explain"
    ),
    "GET /v1/operator/causes": lambda rng, pool: Request("GET", "/v1/operator/causes", [("state", "pending"), ("limit", "5")]),
    "GET /v1/operator/conflicts": lambda rng, pool: Request(
        "GET", "/v1/operator/conflicts", [("group", rng.choice(GROUPS)), ("by", "producer"), ("limit", "5")]
    ),
    "GET /v1/operator/groups/{group}": lambda rng, pool: Request(
        "GET", f"/v1/operator/groups/{quote(rng.choice(GROUPS), safe='')}"
    ),
    "GET /v1/operator/dead-letters": lambda rng, pool: Request("GET", "/v1/operator/dead-letters"),
    "GET /v1/operator/dead-letters/{group}": lambda rng, pool: Request(
        "GET", f"/v1/operator/dead-letters/{quote(rng.choice(GROUPS), safe='')}", [("max", "3")]
    ),
    "POST /v1/operator/dead-letters/{group}/replay": lambda rng, pool: Request(
        "POST",
        f"/v1/operator/dead-letters/{quote(rng.choice(GROUPS), safe='')}/replay",
        content={**_letters(rng, pool), "reason": "fuzz", "dry_run": rng.random() < 0.5},
    ),
    "GET /v1/operator/settings": lambda rng, pool: Request("GET", "/v1/operator/settings"),
    "GET /v1/status": lambda rng, pool: Request("GET", "/v1/status"),
    "GET /": lambda rng, pool: Request("GET", "/"),
    "GET /console/session": lambda rng, pool: Request("GET", "/console/session", headers=[(b"cookie", rng.choice(COOKIES))]),
    "POST /console/session": lambda rng, pool: Request("POST", "/console/session", content={"token": _id(rng, pool)}),
    "DELETE /console/session": lambda rng, pool: Request("DELETE", "/console/session", headers=[(b"origin", rng.choice(ORIGINS))]),
    "GET /console/{file}": lambda rng, pool: Request("GET", f"/console/{rng.choice(('app.js', 'none', '..', '%2e%2e%2fx'))}"),
    "GET /livez": lambda rng, pool: Request("GET", "/livez"),
    "GET /readyz": lambda rng, pool: Request("GET", "/readyz"),
    "GET /openapi.json": lambda rng, pool: Request("GET", "/openapi.json"),
    "GET /metrics": lambda rng, pool: Request("GET", "/metrics", headers=[(b"accept", rng.choice(ACCEPTS))]),
}
#: Most of what is sent goes where something can go wrong. Routes that are not named weigh 1.
HEAVIER = {
    "POST /v1/halves": 8,
    "POST /v1/messages": 4,
    "POST /v1/ends": 8,
    "GET /v1/groups/{group}/checks": 4,
    "GET /v1/transactions/{id}": 4,
    "GET /v1/topics/{topic}/messages": 6,
    "POST /v1/topics/{topic}/acks": 4,
    "POST /v1/topics/{topic}/visibility": 4,
    "POST /v1/topics/{topic}/seek": 3,
    "GET /v1/groups/{group}/dead-letters": 3,
    "POST /v1/groups/{group}/dead-letters/replay": 3,
    "GET /v1/operator/transactions": 6,
    "GET /v1/operator/transactions/{id}": 2,
    "POST /v1/operator/actions": 6,
    "POST /v1/operator/topics/remove": 0.5,
    "GET /": 0.2,
    "DELETE /console/session": 0.5,
    "GET /console/{file}": 0.5,
    "GET /openapi.json": 0.2,
    "GET /v1/topics/{topic}/queues": 4,
    "GET /v1/topics/{topic}/queues/{queue}/messages": 4,
    "GET /v1/operator/tables/{table}": 2,
    "GET /v1/operator/causes": 2,
    "POST /v1/operator/dead-letters/{group}/replay": 2,
}
WEIGHTS = [HEAVIER.get(route, 1) for route in ROUTES]

# --- spoiling content -----------------------------------------------------------------------------------------------------------
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 63, 64, 4096, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0,
    1e308, float("nan"), float("inf"), float("-inf"), "", " ", "\x00", "\x01", "\x02", "\ud800", "\udc00x", "\ufeff", "\u202e",
    "😀" * 1000, "a" * 127, "a" * 128, "a" * 4096, "a" * 4097, "é" * 20_000, "a" * 100_000, ".", "..", "../../etc/passwd", "%00",
    "%ff", "*", "a||", "||", "TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "%DLQ%", "%DLQ%%DLQ%readers", "%RETRY%x",
    "PGROUP", "earliest", "latest", "-1", "1e3", "0x10", "1_000", "٣", "9" * 18, "9" * 400, "9" * 5000,
    "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "2027-13-45T99:99:99Z", "1-1-1-1-1",
    "f" * 16 + "-" + "f" * 16 + "-f-f-f", "---", "0x1-1-1-1-1", "0-0", "-", "g-g", "3f-", [], [[]], {}, {"": ""},
    {"TRAN_MSG": "true"}, {"TAGS": "a" * 20_000}, {"DELAY": "3"}, {str(n): "" for n in range(300)}, {"\x01": "\x02"},
    [None] * 1000, ["x"] * 5000, {"a": {"b": {"c": []}}}, b"\x00\xff",
)  # fmt: skip


def spoil_text(rng: random.Random, text: str) -> str:
    """A letter changed, left out, added; other case; nothing of it; twice."""
    at = rng.randrange(len(text) + 1)
    letter = rng.choice("Aa0-_=/+ %\x00é")
    return rng.choice(
        (text[:at] + letter + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + letter + text[at:], text.swapcase(), text * 2)
    )


def spoil_value(rng: random.Random, value: Any) -> Any:
    """Somewhere in a tree of values, something else."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(list(value))
        how = rng.random()
        if how < 0.1:
            return {each: value[each] for each in value if each != name}
        if how < 0.2:
            return {**value, rng.choice(("colour", "", "\x00", name.upper(), "__class__")): rng.choice(HOSTILE)}
        return {**value, name: spoil_value(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return value * rng.choice((2, 100))
        return [*value[:at], spoil_value(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, str) and value and rng.random() < 0.3:
        return spoil_text(rng, value)
    return rng.choice(HOSTILE)


def encode(rng: random.Random, content: Any, media: str) -> bytes:
    if media == "msgpack":
        try:
            return msgspec.msgpack.encode(content)
        except (UnicodeEncodeError, OverflowError, TypeError):
            return b"\x81\xa8messages\x91\x81\xa5group\xa3\xed\xa0\x80"  # a lone surrogate, or what has no form in msgpack
    text = json.dumps(content, ensure_ascii=rng.random() < 0.5, default=lambda value: value.decode("latin-1"))
    return text.encode("utf-8", "surrogatepass")


BOMBS = (
    b"\x81\xa8messages\xdd\xff\xff\xff\xff", b"\x81\xa8messages\xdd\x7f\xff\xff\xff\xc0", b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01", b"\xc1", b"\xd6\xff\x00\x00\x00\x01",
    b"\xc7\x0c\xff" + b"\xff" * 12, b"\x91" * 200_000, b"\x81\xa3ids" + b"\xdc\xff\xff" * 50,
    b"\x81\xa8messages\x91\x81\xa5group\xc7\xff\x05" + b"x" * 255, b"[" * 200_000, b'{"messages":' * 20_000,
    b'{"messages":[{"group":"g"' + b',"group":"g"' * 10_000 + b"}]}", b'{"\\ud800":1}', b'"' * 3,
    b'{"messages":[{"check_immunity_s":' + b"9" * 100_000 + b"}]}", b'{"ends":[{"from_check":1e99999}]}', b"\xef\xbb\xbf{}",
    b"\xff\xfe{\x00}\x00", b'{"messages":[' + b"0," * 100_000 + b"0]}", b"\x00" * 1000, b"{}" + b" " * 200_000, b"{}{}", b"null",
    b"", b'{"messages":[' + b'{"group":"g","topic":"t","text":""},' * 30_000 + b"0]}",
    b'{"messages":[{"group":"g","topic":"t","text":"","properties":{' + b'"a":"",' * 60_000 + b'"b":""}}]}',
    b'{"ends":[' + b'{"group":"g","id":"i","outcome":"commit"},' * 10_000 + b"0]}",
    b'{"group":"g","receipts":[' + b'"",' * 400_000 + b'""]}',
)  # fmt: skip


def spoil_bytes(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(made) + 1)
        how = rng.randrange(6)
        if how == 0 and at < len(made):
            made[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del made[at : at + rng.choice((1, 1, 4, 64))]
        elif how == 2:
            made[at:at] = rng.randbytes(rng.choice((1, 1, 4, 64)))
        elif how == 3:
            made[at:at] = made[at : at + rng.choice((1, 8, 100))]
        elif how == 4:
            del made[at:]
        else:
            made[at : at + 1] = rng.choice((b"\x00", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xdd", b'"', b"\\", b"{", b"]"))
    return bytes(made)


JUNK = (
    b"%", b"%%", b"%0", b"%zz", b"%00", b"%ff", b"%c0%80", b"%ed%a0%80", b"%f0%9f%98%80", b"%2f", b"%2e%2e", b"%0d%0a", b"//",
    b"/..", b"/.", b";a=b", b"&&&", b"=", b"?", b"??", b"+", b"a=1&a=2", b"&x[]=1", b"&max=-1", b"&max=99999999999999999999",
    b"&max=" + b"9" * 5000, b"&wait_s=nan", b"&wait_s=inf", b"&wait_s=-1", b"&wait_s=1e-300", b"&wait_s=1e400", b"&tags=a||",
    b"&from=%00", b"&visibility_s=nan", b"&after=-", b"&" * 200, b"x" * 5000, b"&colour=x", b"&group=", b"&member=" + b"m" * 200,
    b"&from=9999-12-31T23:59:59-23:59", b"|", b"`", b"^", b"{}", b"[", b"\\", b"'", b"<script>", b"~",
)  # fmt: skip


def spoil_target(rng: random.Random, target: bytes) -> bytes:
    how = rng.random()
    if how < 0.1:
        return rng.choice(
            (b"/", b"/v1", b"/v1/", b"/v1/nonsense", b"/v1/groups//checks", b"/v1/transactions/", b"*", b"http://localhost/livez")
        )
    at = rng.randrange(1, len(target) + 1) if how < 0.6 else len(target)
    return target[:at] + rng.choice(JUNK) + target[at:]


MEDIA = (
    b"text/plain", b"", b"application/json;charset=utf-16", b"APPLICATION/JSON", b"application/msgpack",
    b"application/x-msgpack ; a=b", b"multipart/form-data", b"application/json, application/msgpack", b"\xff", b"a" * 3000,
    b"*/*", b"application/problem+json", b"json",
)  # fmt: skip
OTHER_HEADERS = (
    (b"content-type", b"application/json"), (b"expect", b"100-continue"), (b"expect", b"200-ok"), (b"upgrade", b"h2c"),
    (b"x" * 300, b"y"), (b"connection", b"upgrade"), (b"connection", b"keep-alive, upgrade"), (b"upgrade", b"websocket"),
    (b"x", b"y" * 8000), (b"cookie", b"a=b"), (b"host", b"evil.example"), (b"content-encoding", b"gzip"),
    (b"x-forwarded-for", b"1.2.3.4"), (b"trailer", b"x"), (b"te", b"trailers"), (b"http2-settings", b"AAMAAABkAAQAoAAAAAIAAAAA"),
    (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-site", b"same-site"), (b"sec-fetch-site", b"\xff"),
    (b"origin", b"null"), (b"forwarded", b"for=203.0.113.9"), (b"via", b"1.1 a"),
    (b"range", b"bytes=0-"), (b"if-none-match", b"*"), (b"content-md5", b"\x80\x81"),
)  # fmt: skip
METHODS = ("PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "PURGE", "GET", "POST")


def tokens(rng: random.Random, token: str) -> list[bytes]:
    good = f"Bearer {token}".encode()
    return [
        good[:-1], good + b"A", good.swapcase(), good.lower(), b"Bearer", b"Bearer ", b"Basic dTpw", b"", b"\xff\xfe",
        b"Bearer " + b"x" * 9000, f"Bearer {token[:16]}{'A' * 43}".encode(), token.encode(), b"Bearer  \t" + token.encode(),
        good + b"," + good, b"Bearer escrow_aaaaaaaa_" + b"b" * 43, spoil_text(rng, token).replace("\x00", "x").encode("latin-1"),
    ]  # fmt: skip


def spoil_content(rng: random.Random, request: Request, pool: Pool) -> None:
    """Once: somewhere in method, target, headers or content."""
    how = rng.random()
    if how < 0.5 and request.content is not None:
        request.content = spoil_value(rng, request.content)
    elif how < 0.6 and request.content is not None:
        request.media = "msgpack"
    elif how < 0.7:
        request.target = spoil_target(rng, target_of(request))
    elif how < 0.75:
        request.headers.append((b"content-type", rng.choice(MEDIA)))
    elif how < 0.8:
        request.headers.append((b"accept", rng.choice(ACCEPTS)))
    elif how < 0.85:
        request.headers.append((b"authorization", rng.choice(tokens(rng, pool.token))))
    elif how < 0.92:
        request.headers += rng.sample(OTHER_HEADERS, rng.randint(1, 3))
    elif how < 0.95:
        request.method = rng.choice(METHODS)
    elif request.query:
        at = rng.randrange(len(request.query))
        request.query[at] = request.query[at][0], str(rng.choice([value for value in HOSTILE if value != "\ud800"]))[:2000]
    else:
        request.body = rng.choice(BOMBS)
        request.media = rng.choice(("json", "msgpack"))


def target_of(request: Request) -> bytes:
    if request.target is not None:
        return request.target
    query = "&".join(f"{name}={quote(value, safe='', errors='surrogatepass')}" for name, value in request.query)
    return (request.path + ("?" + query if query else "")).encode()


# --- into bytes -----------------------------------------------------------------------------------------------------------------
def head_of(request: Request, pool: Pool, framing: list[tuple[bytes, bytes]], version: bytes = b"HTTP/1.1") -> bytes:
    given = {name for name, _ in request.headers}
    headers = [(b"host", b"localhost"), *framing]
    if b"authorization" not in given:
        headers.append((b"authorization", b"Bearer " + pool.token.encode()))
    if (request.content is not None or request.body is not None) and b"content-type" not in given:
        headers.append((b"content-type", b"application/" + request.media.encode()))
    lines = [b"%s: %s\r\n" % header for header in (*headers, *request.headers)]
    return b"".join([request.method.encode(), b" ", target_of(request), b" ", version, b"\r\n", *lines, b"\r\n"])


def body_of(rng: random.Random, request: Request) -> bytes:
    if request.body is not None:
        return request.body
    return b"" if request.content is None else encode(rng, request.content, request.media)


def chunked(rng: random.Random, body: bytes) -> bytes:
    """As chunks that may be odd, but are not wrong."""
    parts, at = [], 0
    while at < len(body):
        size = rng.choice((1, 7, 100, 4096, 65_536)) if len(body) < 20_000 else 65_536
        piece = body[at : at + size]
        at += len(piece)
        number = rng.choice((b"%x", b"%X", b"000%x")) % len(piece)
        parts.append(number + rng.choice((b"", b"", b";a=b", b';a="b c"')) + b"\r\n" + piece + b"\r\n")
    trailers = rng.choice((b"", b"", b"x: y\r\n", b"content-type: text/xml\r\nauthorization: none\r\n"))
    return b"".join(parts) + b"0\r\n" + trailers + b"\r\n"


def whole(rng: random.Random, request: Request, pool: Pool) -> bytes:
    """The request as bytes that are HTTP, whatever is in them."""
    body = body_of(rng, request)
    if body and rng.random() < 0.15:
        return head_of(request, pool, [(b"transfer-encoding", b"chunked")]) + chunked(rng, body)
    framing = [(b"content-length", b"%d" % len(body))] if body or request.method == "POST" else []
    return head_of(request, pool, framing) + body


def in_pieces(rng: random.Random, data: bytes) -> list[bytes]:
    if rng.random() < 0.7 or len(data) < 4:
        return [data]
    cuts = sorted(rng.randrange(1, len(data)) for _ in range(rng.randint(1, 4)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if begin < end]


# --- spoiling the framing -------------------------------------------------------------------------------------------------------
PROTOCOLS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 200, b"\r\n" * 500, b"GET /livez\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.0\r\n", b"\x00" * 500, b"EHLO x\r\n", b"\xff" * 300, b"GET  /livez HTTP/1.1\r\n\r\n",
    b"GET /livez HTTP/1.1\n\n", b"get /livez http/1.1\r\n\r\n", b"GET /livez HTTP/1.1\r\n\x00: x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nx y: z\r\n\r\n", b"GET /livez HTTP/1.1\r\nhost : x\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", b"GET /livez HTTP/1.1\r\n: empty\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nx: a\r\n  folded\r\n\r\n", b"G" * 40_000, b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 9000 + b"\r\n", b"GET /livez HTTP/1.1\r\nx: " + b"y" * 70_000,
    b"GET /\xc3\xa9 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /a b HTTP/1.1\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nhost: x\r\n\r\n", b"GET http:// HTTP/1.1\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n", b"GET x HTTP/1.1\r\n\r\n", b"GET http://[::1 HTTP/1.1\r\n\r\n",
    b"*1\r\n$4\r\nPING\r\n", b"GET /livez HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n", b"GET /livez HTTP/1.1\r\n\r\n",
    b"GET /livez HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 65_536 + b"\r\n\r\n",
)  # fmt: skip
LENGTHS = (
    b"-1", b"+5", b"0x10", b"5, 5", b"5, 6", b"", b" ", b"99999999999", b"18446744073709551616", b"9" * 400, b"1e3", b"5;",
    b"\x00", b"NaN", b"00", b"5 5",
)  # fmt: skip
CODINGS = (
    b"chunked, chunked",
    b"gzip",
    b"identity",
    b"gzip, chunked",
    b"chunked, gzip",
    b"Chunked ",
    b"xchunked",
    b"",
    b"chunked;q=1",
    b"\x0bchunked",
)
CHUNKS = (
    b"ZZ\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"fffffffffffffffff\r\n", b"1\r\nab\r\n", b"5\r\nab", b"0\r\nx", b"\r\n",
    b"0x5\r\nhello\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"1;" + b"a" * 50_000, b"1;" + b"a=b;" * 300 + b"\r\nx\r\n0\r\n\r\n",
    b"0\r\n" + b"x: y\r\n" * 9000, b"0\r\nx: " + b"y" * 60_000, b"5\nhello\n0\n\n", b"7fffffff\r\nx", b"1\r\nx\r\n" * 3000,
    b"0\r\nno colon\r\n\r\n", b"0\r\n\x00: x\r\n\r\n",
)  # fmt: skip


def spoil_framing(rng: random.Random, request: Request, pool: Pool) -> tuple[str, bytes]:
    """(what was done, the bytes)."""
    body = body_of(rng, request) or b'{"messages":[]}'
    length = (b"content-length", b"%d" % len(body))
    how = rng.randrange(9)
    if how == 0:
        return "other protocols", rng.choice(PROTOCOLS)
    if how == 1:
        return "two lengths", head_of(
            request, pool, [length, (b"Content-Length", rng.choice((length[1], b"0", b"1", b"99999")))]
        ) + body
    if how == 2:
        framing = [length, (b"transfer-encoding", b"chunked")]
        rng.shuffle(framing)
        return "length and chunks", head_of(request, pool, framing) + rng.choice((body, chunked(rng, body)))
    if how == 3:
        return "odd lengths", head_of(request, pool, [(b"content-length", rng.choice(LENGTHS))]) + body
    if how == 4:
        return "odd codings", head_of(request, pool, [(b"transfer-encoding", rng.choice(CODINGS))]) + chunked(rng, body)
    if how == 5:
        return "bad chunks", head_of(request, pool, [(b"transfer-encoding", b"chunked")]) + b"1\r\n{\r\n" * rng.randrange(
            2
        ) + rng.choice(CHUNKS)
    if how == 6:
        version = rng.choice((b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/1.12", b"HTP/1.1", b"", b"HTTP/1.1 x"))
        return "other versions", head_of(request, pool, [length], version) + body
    if how == 7:
        return "spoilt bytes", spoil_bytes(rng, head_of(request, pool, [length]) + body)
    false = rng.choice((len(body) + 1, len(body) + 1000, max(len(body) - 1, 0), 0))
    return "false lengths", head_of(request, pool, [(b"content-length", b"%d" % false)]) + body


# --- cases ----------------------------------------------------------------------------------------------------------------------
def make(seed: int, number: int, pool: Pool) -> Case:
    """Case `number` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    (route,) = rng.choices(list(ROUTES), WEIGHTS)
    request = ROUTES[route](rng, pool)
    how = rng.random()
    if how < 0.05:
        return _alone(rng, number, route, request, pool, kind="valid")
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        spoil_content(rng, request, pool)
    if how < 0.55:
        return _alone(rng, number, route, request, pool, kind="content")
    if how < 0.7:
        request.body = rng.choice(BOMBS) if rng.random() < 0.3 else spoil_bytes(rng, body_of(rng, request))
        return _alone(rng, number, route, request, pool, kind="bytes")
    if how < 0.72:
        return _pipelined(rng, number, route, pool)
    if how < 0.8:
        return _broken_off(rng, number, route, request, pool)
    if how < 0.803:
        return Case(number, route, "dribble", [b"%c" % byte for byte in whole(rng, request, pool)[:12]], None, ["?"], pause_s=0.02)
    what, data = spoil_framing(rng, request, pool)
    end = rng.choice(("read", "read", "hang up", "reset"))
    return Case(number, route, f"framing: {what}", in_pieces(rng, data), None, ["?"], end)


def _alone(rng: random.Random, number: int, route: str, request: Request, pool: Pool, *, kind: str) -> Case:
    return Case(number, route, kind, in_pieces(rng, whole(rng, request, pool)), 1, [request.method])


def _pipelined(rng: random.Random, number: int, route: str, pool: Pool) -> Case:
    """Several behind one another; beyond what the door allows they are hung up on."""
    (count,) = rng.choices((2, 3, 8, 80), (8, 8, 4, 1))
    requests = [ROUTES[rng.choice(list(ROUTES)[:-2])](rng, pool) for _ in range(count)]
    spoilt = rng.random() < 0.5
    if spoilt:
        spoil_content(rng, rng.choice(requests), pool)
    data = b"".join(whole(rng, request, pool) for request in requests)
    methods = [request.method for request in requests]
    answers = None if spoilt or count > 60 else count
    return Case(number, route, "pipelined", in_pieces(rng, data), answers, methods, requests=count)


def _broken_off(rng: random.Random, number: int, route: str, request: Request, pool: Pool) -> Case:
    """Half a request, or a long poll, and then nobody is there."""
    if request.path.endswith(("/checks", "/messages")) and request.query:
        request.query = [pair for pair in request.query if pair[0] != "wait_s"] + [("wait_s", "30")]
        data = whole(rng, request, pool)
    else:
        data = whole(rng, request, pool)
        data = data[: rng.randrange(len(data))]
    return Case(number, route, "broken off", in_pieces(rng, data), None, [request.method], rng.choice(("hang up", "reset")))
