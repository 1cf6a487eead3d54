"""The table of operations, and what each does. docs/http-api.md says the same to people, /openapi.json to programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs
from prometheus_client.exposition import choose_encoder

from ingest.capabilities import Consuming, Offers, Operating, Reading
from ingest.checks import wire as check_wire
from ingest.consuming.dead_letters import topic_of as dead_letter_topic
from ingest.consuming.pages import Page
from ingest.errors import NotInKafkaMode, NotReady
from ingest.http import console, openapi, sights
from ingest.http.app import Exchange, Route
from ingest.http.wire import consumers, fields, health, operators, producers, sealed_halves
from ingest.operating.tables import TableAsk, TablePage
from ingest.operating.topic_removal import Wanted
from runtime.metrics import EdgeMetrics

_TAKES: Final = (400, 408, 413, 415, 429, 503)
#: 431: what is asked for stands in the head, which is bounded.
_ASKS: Final = (400, 429, 431, 503)


def _require_send(exchange: Exchange, messages: Sequence[producers.MessageIn]) -> None:
    """For every group and topic that a batch names; mostly it is one pair."""
    if len(messages) == 1:
        group, topic = messages[0].group, messages[0].topic
        exchange.principal.require_send(group, topic)
        exchange.edge.offers.naming.admit(exchange.principal, (group,), (topic,))
        return
    pairs = {(message.group, message.topic) for message in messages}
    for group, topic in pairs:
        exchange.principal.require_send(group, topic)
    exchange.edge.offers.naming.admit(exchange.principal, {group for group, _ in pairs}, {topic for _, topic in pairs})


def _consuming(exchange: Exchange) -> Consuming:
    found = exchange.edge.offers.consuming
    assert found is not None, "its routes are mounted where it is there"
    return found


def _reading(exchange: Exchange) -> Reading:
    found = exchange.edge.offers.reading
    assert found is not None, "its routes are mounted where it is there"
    return found


def _operating(exchange: Exchange) -> Operating:
    found = exchange.edge.offers.operating
    assert found is not None, "its routes are mounted where it is there"
    return found


# --- producers --------------------------------------------------------------------------------------------------------------
async def post_halves(exchange: Exchange) -> None:
    given = await exchange.body(producers.MessagesIn)
    _require_send(exchange, given.messages)
    storing = exchange.edge.halves.store_halves(producers.messages(given.messages))
    del given  # before the flush, not after it: the next request is read into memory that is warm
    await exchange.answer(sealed_halves.halves(await storing))


async def post_messages(exchange: Exchange) -> None:
    given = await exchange.body(producers.MessagesIn)
    _require_send(exchange, given.messages)
    places = await exchange.edge.messages.send(producers.messages(given.messages))
    await exchange.answer(producers.MessagesOut([fields.PlaceOut(*place) for place in places]))


async def post_ends(exchange: Exchange) -> None:
    given = await exchange.body(producers.EndsIn)
    for group in {end.group for end in given.ends}:
        exchange.principal.require_produce(group)
    await exchange.answer(producers.end_answers(await exchange.edge.ends.end(producers.ends(given.ends))))


async def get_checks(exchange: Exchange) -> None:
    """The hand-over is recorded after the answer was written."""
    asked, group = exchange.query(producers.ChecksQuery), exchange.name("group")
    exchange.principal.require_produce(group)
    async with exchange.attended(), exchange.edge.polls.poll_checks(group, asked.member, asked.max, asked.wait_s) as handover:
        exchange.identify_again()
        exchange.principal.require_produce(group)
        id_of = exchange.edge.checks.id_of
        await exchange.answer(producers.ChecksOut([check_wire.check(request, id_of(request)) for request in handover.requests]))


async def get_transaction(exchange: Exchange) -> None:
    id = exchange.name("id")
    found = await exchange.edge.transactions.transaction(id)
    if not exchange.principal.operator and found.group:
        exchange.principal.require_produce(found.group)
    await exchange.answer(producers.transaction(id, found))


# --- consumers --------------------------------------------------------------------------------------------------------------
async def get_messages(exchange: Exchange) -> None:
    """What could not be written goes to another consumer at once."""
    asked, topic = exchange.query(consumers.MessagesQuery), exchange.name("topic")
    exchange.principal.require_consume(topic, asked.group)
    exchange.edge.offers.naming.admit(exchange.principal, (asked.group,), ())
    offers = exchange.edge.offers
    assert offers.deliveries is not None
    assert offers.issued is not None
    async with exchange.attended():
        found = await offers.deliveries.poll(
            topic, asked.group, asked.consumer,
            max_messages=asked.max, wait_s=asked.wait_s, visibility_s=asked.visibility_s, tags=asked.tags, start=asked.start,
            hold=exchange.hold,
        )  # fmt: skip
        try:
            exchange.identify_again()
            exchange.principal.require_consume(topic, asked.group)
            id_of = offers.issued.transaction_id_of
            await exchange.answer(consumers.DeliveriesOut([consumers.delivery(each, id_of(each)) for each in found]))
        except BaseException:
            _consuming(exchange).put_back(found)
            raise


async def get_queues(exchange: Exchange) -> None:
    asked, topic = exchange.query(consumers.PlacesQuery), exchange.name("topic")
    exchange.principal.require_read(topic)
    await exchange.answer(consumers.PlacesOut(*await _reading(exchange).places(topic, asked.at)))


async def get_page(exchange: Exchange) -> None:
    asked, topic = exchange.query(consumers.PageQuery), exchange.name("topic")
    exchange.principal.require_read(topic)
    found = await _reading(exchange).page(
        topic, fields.number(exchange.name("queue"), "queue"), asked.queue_offset,
        max_messages=asked.max, max_bytes=asked.max_bytes, hold=exchange.hold,
    )  # fmt: skip
    await exchange.answer(found)


async def post_acks(exchange: Exchange) -> None:
    given, topic = await exchange.body(consumers.ReceiptsIn), exchange.name("topic")
    exchange.principal.require_consume(topic, given.group)
    answers = await _consuming(exchange).ack(topic, given.group, given.receipts)
    await exchange.answer(consumers.AcksOut([consumers.AckOut(answer) for answer in answers]))  # type: ignore[arg-type]


async def post_visibility(exchange: Exchange) -> None:
    given, topic = await exchange.body(consumers.VisibilityIn), exchange.name("topic")
    exchange.principal.require_consume(topic, given.group)
    await exchange.answer(
        consumers.ReceiptsOut(await _consuming(exchange).change_visibility(topic, given.group, given.receipts, given.visibility_s))
    )


async def post_seek(exchange: Exchange) -> None:
    given, topic = await exchange.body(consumers.SeekIn), exchange.name("topic")
    exchange.principal.require_consume(topic, given.group)
    exchange.edge.offers.naming.admit(exchange.principal, (given.group,), ())
    async with exchange.edge.offers.audit.action(exchange.principal.name, "seek", f"{topic} as {given.group} to {given.to}"):
        found = await _consuming(exchange).seek(topic, given.group, given.to)
    await exchange.answer(consumers.SeekOut([fields.PlaceOut(*place) for place in sorted(found.items())]))


async def get_dead_letters(exchange: Exchange) -> None:
    asked, group = exchange.query(consumers.LettersQuery), exchange.name("group")
    exchange.principal.require_consume(dead_letter_topic(group), group)
    found, following = await _consuming(exchange).dead_letters(group, after=asked.after, max_letters=asked.max)
    await exchange.answer(consumers.LettersOut([consumers.letter(each) for each in found], following))


async def post_replay(exchange: Exchange) -> None:
    given, group = await exchange.body(consumers.ReplayIn), exchange.name("group")
    exchange.principal.require_consume(dead_letter_topic(group), group)
    async with exchange.edge.offers.audit.action(exchange.principal.name, "replay", f"{len(given.ids)} dead letters of {group}"):
        replayed = await _consuming(exchange).replay(group, given.ids)
    await exchange.answer(consumers.ReplayOut(replayed))


# --- operators --------------------------------------------------------------------------------------------------------------
async def get_overview(exchange: Exchange) -> None:
    await exchange.answer(await _operating(exchange).overview.answer())


async def get_transactions(exchange: Exchange) -> None:
    asked = exchange.query(operators.TransactionsQuery)
    found = await _operating(exchange).listings.page(operators.query_of(asked), asked.limit, asked.order == "newest", asked.cursor)
    await exchange.answer(operators.transactions(found))


async def get_inspected(exchange: Exchange) -> None:
    id = exchange.name("id")
    await exchange.answer(operators.inspected(id, await _operating(exchange).inspect(id)))


async def post_actions(exchange: Exchange) -> None:
    given = await exchange.body(operators.ActionIn)
    await exchange.answer(operators.done(await exchange.edge.transactions.act(operators.action(given, exchange.principal.name))))


async def get_table(exchange: Exchange) -> None:
    asked, table = exchange.query(operators.TableQuery), exchange.name("table")
    found = await _operating(exchange).tables.page(table, TableAsk(**structs.asdict(asked)))
    await exchange.answer(found)


async def get_audit(exchange: Exchange) -> None:
    asked = exchange.query(operators.AuditQuery)
    await exchange.answer(operators.audits(*await _operating(exchange).audited(asked.limit, asked.before)))


async def get_groups(exchange: Exchange) -> None:
    await exchange.answer({"groups": await _operating(exchange).overview.groups()})


async def get_topics(exchange: Exchange) -> None:
    await exchange.answer({"topics": _operating(exchange).overview.topics()})


async def post_topics(exchange: Exchange) -> None:
    given = await exchange.body(operators.TopicIn)
    async with exchange.edge.offers.audit.action(exchange.principal.name, "create topic", given.topic):
        queues, made = await _operating(exchange).create_topic(given.topic, given.queues)
    await exchange.answer(operators.TopicMadeOut(given.topic, queues, made))


async def post_topics_remove(exchange: Exchange) -> None:
    given = await exchange.body(operators.TopicsRemoveIn)
    wanted = Wanted(given.topics, given.unused, given.made_by, given.dry_run)
    if wanted.dry_run:
        found = await _operating(exchange).remove_topics(wanted)
    else:
        async with exchange.edge.offers.audit.action(exchange.principal.name, "remove topics", wanted.told()):
            found = await _operating(exchange).remove_topics(wanted)
    await exchange.answer(operators.topics_removed(found, given.dry_run))


async def get_status(exchange: Exchange) -> None:
    await exchange.answer(await exchange.edge.figures.status())


# --- all callers ------------------------------------------------------------------------------------------------------------
async def get_livez(exchange: Exchange) -> None:
    await exchange.answer(health.LiveOut("ok"))


async def get_readyz(exchange: Exchange) -> None:
    if reason := exchange.edge.core.not_ready:
        raise NotReady(reason)
    await exchange.answer(health.ready(exchange.edge.settings.role, exchange.edge.figures.job_state()))


PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
OPERATOR: Final = "operator"
#: Bodies of names: each has a few hundred bytes at most.
_NAMES_MAX_BYTES: Final = 4 << 20
_SMALL_MAX_BYTES: Final = 64 << 10
_ROUTES: Final = (
    Route("POST", "/v1/halves", post_halves, "Store halves, all or none", PRODUCER, sealed_halves.HalvesOut,
          producers.MessagesIn, problems=(*_TAKES, 403, 404, 409), straight=True),
    Route("POST", "/v1/messages", post_messages, "Store ordinary messages, visible without a transaction",
          PRODUCER, producers.MessagesOut, producers.MessagesIn, problems=(*_TAKES, 403, 404), straight=True),
    Route("POST", "/v1/ends", post_ends, "Commit, rollback or unknown; each is answered", PRODUCER,
          producers.EndsOut, producers.EndsIn, problems=_TAKES, share="ends", straight=True),
    Route("GET", "/v1/groups/{group}/checks", get_checks, "Long poll for check requests", PRODUCER,
          producers.ChecksOut, query=producers.ChecksQuery, problems=_ASKS),
    Route("GET", "/v1/transactions/{id}", get_transaction, "State and history of one transaction", PRODUCER,
          producers.TransactionOut, problems=(404, 503)),
    Route("GET", "/v1/topics/{topic}/messages", get_messages, "Long poll for messages", CONSUMER,
          consumers.DeliveriesOut, query=consumers.MessagesQuery, problems=_ASKS, needs="consuming"),
    Route("GET", "/v1/topics/{topic}/queues", get_queues, "Queues of a topic: begin, end, and the place of a time", CONSUMER,
          consumers.PlacesOut, query=consumers.PlacesQuery, problems=(*_ASKS, 404), needs="consuming"),
    Route("GET", "/v1/topics/{topic}/queues/{queue}/messages", get_page,
          "Messages of one queue from a place on, without a consumer group", CONSUMER, Page,
          query=consumers.PageQuery, problems=(*_ASKS, 404), needs="consuming"),
    Route("POST", "/v1/topics/{topic}/acks", post_acks, "Acknowledge messages", CONSUMER, consumers.AcksOut,
          consumers.ReceiptsIn, problems=_TAKES, share="ends", body_max_bytes=_NAMES_MAX_BYTES,
          needs="consuming"),
    Route("POST", "/v1/topics/{topic}/visibility", post_visibility,
          "More time for messages in hand; 0 gives them back", CONSUMER, consumers.ReceiptsOut,
          consumers.VisibilityIn, problems=_TAKES, share="ends", body_max_bytes=_NAMES_MAX_BYTES,
          needs="consuming"),
    Route("POST", "/v1/topics/{topic}/seek", post_seek, "Move a consumer group to another position", CONSUMER,
          consumers.SeekOut, consumers.SeekIn, problems=_TAKES, share="ends", body_max_bytes=_SMALL_MAX_BYTES,
          needs="consuming"),
    Route("GET", "/v1/groups/{group}/dead-letters", get_dead_letters,
          "Messages that were delivered too often", CONSUMER, consumers.LettersOut,
          query=consumers.LettersQuery, problems=_ASKS, needs="consuming"),
    Route("POST", "/v1/groups/{group}/dead-letters/replay", post_replay,
          "Deliver dead letters to the group again", CONSUMER, consumers.ReplayOut, consumers.ReplayIn,
          problems=(*_TAKES, 404), body_max_bytes=_NAMES_MAX_BYTES, needs="consuming"),
    Route("GET", "/v1/operator/overview", get_overview, "Pending transactions, rates and health", OPERATOR,
          operators.OverviewOut, problems=(503,), console=True, needs="operating"),
    Route("GET", "/v1/operator/transactions", get_transactions, "List transactions", OPERATOR,
          operators.TransactionsOut, query=operators.TransactionsQuery, problems=(400, 431, 503), console=True,
          needs="operating"),
    Route("GET", "/v1/operator/transactions/{id}", get_inspected, "One transaction with its message",
          OPERATOR, operators.InspectedOut, problems=(404, 503), console=True, needs="operating"),
    Route("GET", "/v1/operator/tables/{table}", get_table,
          "The history of transactions, ops and checks, in columns", OPERATOR, TablePage,
          query=operators.TableQuery, problems=(400, 404, 503), needs="operating"),
    Route("POST", "/v1/operator/actions", post_actions,
          "Check now, commit, roll back or resume; by ids or by a filter", OPERATOR, operators.ActionOut,
          operators.ActionIn, problems=(*_TAKES, 409), share="ends", body_max_bytes=_NAMES_MAX_BYTES,
          console=True),
    Route("GET", "/v1/operator/audit", get_audit, "Audit records, newest first", OPERATOR,
          operators.AuditsOut, query=operators.AuditQuery, problems=(400, 503), console=True, needs="audit"),
    Route("GET", "/v1/operator/groups", get_groups, "Producer groups: pending transactions and members",
          OPERATOR, operators.GroupsOut, problems=(503,), console=True, needs="operating"),
    Route("GET", "/v1/operator/topics", get_topics, "Topics and the consumer groups that read them", OPERATOR,
          operators.TopicsOut, problems=(503,), console=True, needs="operating"),
    Route("POST", "/v1/operator/topics", post_topics, "Create a topic; an existing one is unchanged",
          OPERATOR, operators.TopicMadeOut, operators.TopicIn, problems=(*_TAKES, 409), needs="create_topic"),
    Route("POST", "/v1/operator/topics/remove", post_topics_remove, "Remove unused topics, by name or all",
          OPERATOR, operators.TopicsRemovedOut, operators.TopicsRemoveIn, problems=_TAKES,
          body_max_bytes=_NAMES_MAX_BYTES, needs="remove_topics"),
    *sights.ROUTES,
    Route("GET", "/v1/status", get_status, "Status of the edge and the job", OPERATOR, health.StatusOut),
    Route("GET", "/livez", get_livez, "Alive", "", health.LiveOut),
    Route("GET", "/readyz", get_readyz, "Ready to accept requests; state of the job", "", health.ReadyOut,
          problems=(503,)),
)  # fmt: skip


def make_routes(metrics: EdgeMetrics | None, offers: Offers | None = None, *, with_console: bool = True) -> tuple[Route, ...]:
    """The operations of an edge that offers this; without it, all. Without metrics there is no /metrics."""

    async def get_metrics(exchange: Exchange) -> None:
        assert metrics is not None
        metrics.look()
        content, media = await asyncio.to_thread(_exposition, metrics, exchange.headers.get(b"accept", b"").decode("latin-1"))
        await exchange.write(200, content, [(b"content-type", media.encode())])

    async def get_openapi(exchange: Exchange) -> None:
        await exchange.write(200, openapi.document(routes), [(b"content-type", b"application/json")])

    own = [Route("GET", "/openapi.json", get_openapi, "This API as OpenAPI 3.1", "", health.StatusOut)]
    if metrics is not None:
        own.append(Route("GET", "/metrics", get_metrics, "Prometheus metrics of the edge", "metrics", media="text/plain"))
    found = _ROUTES if offers is None else [_mounted(route, offers) for route in _ROUTES]
    routes = (*found, *own, *(console.ROUTES if with_console else ()))
    return routes


def _mounted(route: Route, offers: Offers) -> Route:
    """As it is, where the edge has what it needs. Where not, it is no operation of this edge; its caller is told where to
    look instead."""
    has = offers.consuming if route.needs == "consuming" else offers.operating
    if not route.needs or has is not None:
        return route
    text = offers.absent[route.needs]

    async def tell(_: Exchange) -> None:
        raise NotInKafkaMode(text)

    return replace(route, handler=tell, hidden=True, straight=False)


def _exposition(metrics: EdgeMetrics, accept: str) -> tuple[bytes, str]:
    """In the form that was asked for, as far as that is understood; otherwise in the plainest."""
    try:
        encoder, media = choose_encoder(accept)
    except (TypeError, ValueError):  # not a version
        return _exposition(metrics, "")
    if not (media.isascii() and media.isprintable()):  # it repeats what was asked for
        return _exposition(metrics, "")
    return encoder(metrics.registry), media
