"""Operations with which operators look into things: one transaction, causes, conflicts, groups, dead letters, settings."""

from __future__ import annotations

from typing import Final

import msgspec

from ingest.capabilities import Operating
from ingest.errors import InvalidRequest, MatchedMore, NotFound
from ingest.http.app import Exchange, Route
from ingest.http.wire import consumers, operators, sights

OPERATOR: Final = "operator"
_TAKES: Final = (400, 408, 409, 413, 415, 429, 503)
#: Of a dead letter's body, so much is shown in a list.
LETTER_SHOWN_BYTES: Final = 2048
REPLAY_AT_ONCE: Final = 256


def _operating(exchange: Exchange) -> Operating:
    found = exchange.edge.offers.operating
    assert found is not None, "its routes are mounted where it is there"
    return found


async def get_body(exchange: Exchange) -> None:
    """The whole body as it is, to be saved; never shown by a browser."""
    body = await _operating(exchange).body(exchange.name("id"))
    if body is None:
        raise NotFound("the message is gone, or cannot be read")
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-disposition", b"attachment; filename=message.bin"),
        (b"x-content-type-options", b"nosniff"),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
    ]
    await exchange.write(200, body, headers)


async def get_explained(exchange: Exchange) -> None:
    id = exchange.name("id")
    await exchange.answer(sights.explained(id, await _operating(exchange).explain(id)))


async def get_causes(exchange: Exchange) -> None:
    asked = exchange.query(sights.CausesQuery)
    found = await _operating(exchange).listings.causes(asked.state)
    await exchange.answer(sights.CausesOut([sights.cause(each) for each in found[: asked.limit]], len(found)))


async def get_conflicts(exchange: Exchange) -> None:
    asked = exchange.query(sights.ConflictsQuery)
    found = _operating(exchange).contradictions.page(asked.limit, group=asked.group, by=asked.by, before_ms=asked.before_ms)
    await exchange.answer(sights.ConflictsOut([sights.conflict(each) for each in found]))


async def get_group(exchange: Exchange) -> None:
    name, operating = exchange.name("group"), _operating(exchange)
    found = await operating.overview.group(name)
    if found is None:
        raise NotFound(f"group {name[:64]}: this store knows no such producer group")
    causes = [
        sights.cause(each)
        for state in ("pending", "discarded")
        for each in await operating.listings.causes(state)
        if each.group == name
    ]
    answers = await operating.listings.recent_answers(name)
    told = [sights.AnswerOut(each.at_ms, id, each.remark, each.by) for id, each in answers]
    conflicts = [sights.conflict(each) for each in operating.contradictions.page(20, group=name)]
    await exchange.answer(sights.GroupSightOut(msgspec.convert(found, operators.GroupOut), causes, told, conflicts))


async def get_dead_groups(exchange: Exchange) -> None:
    await exchange.answer({"groups": _operating(exchange).overview.dead_letters()})


async def get_dead_letters(exchange: Exchange) -> None:
    asked, group = exchange.query(sights.DeadLettersQuery), exchange.name("group")
    consuming = exchange.edge.offers.consuming
    assert consuming is not None, "an edge that can be operated has consumers"
    found, following = await consuming.dead_letters(group, after=asked.after, max_letters=asked.max)
    letters = [consumers.letter(each) for each in found]
    for each in letters:
        each.body = each.body[:LETTER_SHOWN_BYTES]
    await exchange.answer(sights.DeadLettersOut(letters, following, consuming.dead_letter_count(group)))


async def post_replay(exchange: Exchange) -> None:
    """1 find the letters · 2 a dry run ends here · 3 replay, between two records of the audit."""
    given, group = await exchange.body(sights.ReplayAsOperatorIn), exchange.name("group")
    consuming = exchange.edge.offers.consuming
    assert consuming is not None, "an edge that can be operated has consumers"
    ids = given.ids or await _every(exchange, group)  # 1
    if given.dry_run:  # 2
        await exchange.answer(sights.ReplayedOut(True, consuming.open_dead_letters(group, ids), 0))
        return
    if not given.ids and given.expect is None:
        raise InvalidRequest("expect: is missing; make a dry run first and send the number that it matched", "expect")
    if given.expect is not None and len(ids) > given.expect:
        raise MatchedMore(f"expect: there are {len(ids)} now, {given.expect} were expected: make a dry run and look again")
    replayed, audit = 0, exchange.edge.offers.audit
    async with audit.action(exchange.principal.name, "replay", f"{len(ids)} dead letters of {group}: {given.reason}"):  # 3
        for first in range(0, len(ids), REPLAY_AT_ONCE):
            replayed += await consuming.replay(group, ids[first : first + REPLAY_AT_ONCE])
    await exchange.answer(sights.ReplayedOut(False, len(ids), replayed))


async def _every(exchange: Exchange, group: str) -> list[str]:
    """Ids of all open letters. Found first: a letter that dies again at once must not be met twice."""
    consuming, ids, after = exchange.edge.offers.consuming, list[str](), ""
    assert consuming is not None, "an edge that can be operated has consumers"
    while True:
        found, following = await consuming.dead_letters(group, after=after, max_letters=REPLAY_AT_ONCE)
        ids += [each.id for each in found]
        if following is None:
            return ids
        after = following


async def get_settings(exchange: Exchange) -> None:
    settings = exchange.edge.settings
    found = [
        sights.SettingOut(key.name, value, str(origin), key.variable)  # type: ignore[arg-type]
        for key, value, origin in settings.effective()
    ]
    await exchange.answer(sights.SettingsOut(None if settings.file is None else str(settings.file), found))


ROUTES: Final = (
    Route("GET", "/v1/operator/transactions/{id}/body", get_body, "The whole body of a message", OPERATOR,
          media="application/octet-stream", problems=(404, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/transactions/{id}/explain", get_explained, "Why a transaction is in doubt", OPERATOR,
          sights.ExplainedOut, problems=(404, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/causes", get_causes, "Halves in doubt folded by group and cause", OPERATOR,
          sights.CausesOut, query=sights.CausesQuery, problems=(400, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/conflicts", get_conflicts, "Ends that were not taken, newest first", OPERATOR,
          sights.ConflictsOut, query=sights.ConflictsQuery, problems=(400, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/groups/{group}", get_group, "One producer group", OPERATOR,
          sights.GroupSightOut, problems=(404, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/dead-letters", get_dead_groups, "Consumer groups that have dead letters", OPERATOR,
          sights.DeadGroupsOut, problems=(503,), console=True, needs="operating"),
    Route("GET", "/v1/operator/dead-letters/{group}", get_dead_letters, "Dead letters of a consumer group", OPERATOR,
          sights.DeadLettersOut, query=sights.DeadLettersQuery, problems=(400, 503), console=True, needs="operating"),
    Route("POST", "/v1/operator/dead-letters/{group}/replay", post_replay, "Deliver dead letters to their group again",
          OPERATOR, sights.ReplayedOut, sights.ReplayAsOperatorIn, problems=_TAKES, share="ends",
          body_max_bytes=4 << 20, console=True, needs="operating"),
    Route("GET", "/v1/operator/settings", get_settings, "Effective settings of the edge, and where each came from",
          OPERATOR, sights.SettingsOut, console=True),
)  # fmt: skip
