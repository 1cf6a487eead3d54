"""Trouble at three in the morning: what an operator meets when everything goes wrong at once, made on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.console_service import ConsoleService
from tests.support.endpoint import until

ALONE = "payments-eu"
UNKNOWING = "orders"
CONTRADICTING = "stock"
POISONED = "invoices"
REMARK = "no row for order 17 yet"
GUESS = "I guessed"
#: Numbers that JSON.parse changes, a doubled key, a sign that turns the writing round.
ODD_JSON = '{"id":9007199254740993,"price":10.10,"a":1,"a":2,"empty":[],"who":"x\\u202ey"}'


@dataclass(frozen=True)
class Night:
    """Ids of one transaction of each trouble."""

    alone: str
    unknowing: str
    contradicted: str


def make_trouble(service: ConsoleService, in_doubt: int = 300) -> Night:
    """Halves with nobody online, a listener that always says UNKNOWN, contradicting ends, a consumer that never acknowledges."""
    alone = service.halves(ALONE, "payment-captured", *[{"key": f"pay-{number}"} for number in range(in_doubt)])
    unknowing = _unknowing(service)
    (contradicted,) = service.halves(CONTRADICTING, "stock-moved", {"key": "sku-7"})
    service.end(CONTRADICTING, contradicted, "commit")
    with service.client() as client:
        client.end(CONTRADICTING, contradicted, "rollback", from_check=True, remark=GUESS)
    _poison(service)
    return Night(alone[0], unknowing, contradicted)


def _unknowing(service: ConsoleService) -> str:
    ids = service.halves(UNKNOWING, "order-placed", {"key": "order-1", "text": ODD_JSON}, {"key": "order-2"})
    answered = service.ask(UNKNOWING, "orders-1")
    assert set(ids) <= set(answered)
    with service.client() as client:
        for id in ids:
            client.end(UNKNOWING, id, "unknown", from_check=True, remark=REMARK)
    return ids[0]


def be_online(service: ConsoleService) -> None:
    """The group that answers UNKNOWN is there; for the length of a presence."""
    with service.client() as client:
        client.poll_checks(UNKNOWING, "orders-1")


def _poison(service: ConsoleService) -> None:
    """The settings allow two deliveries."""
    with service.client() as client:
        client.send([{"group": "shop", "topic": "order-paid", "key": "bad-1", "text": "poison"}])
    with service.client("reader") as client:

        def dead() -> bool:
            client.raw("GET", f"/v1/topics/order-paid/messages?group={POISONED}&consumer=me&visibility_s=1")
            with service.client("ada") as ada:
                return bool(ada.call("GET", "/v1/operator/dead-letters")["groups"])

        until(dead)
