"""``escrow demo``: an order service that meets every fate a transaction can have, so that a newcomer sees everything move.

    commit, rollback   as it should be: half, local transaction, outcome
    silent             the shop says nothing; Escrow asks, and it answers
    crash              a process is killed between its database commit and its COMMIT; another one answers from the database
    undecided          the shop is asked and cannot tell, again and again: in the end the half is discarded
    abandoned          no member of its group can be asked: an operator must decide

The producers and consumers are the SDK's own; the process that is killed is a real one (``demo_victim``).
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle
from pathlib import Path
from typing import Final

from escrow._deliveries import Delivery
from escrow._transport import tls_context
from escrow.api import Api
from escrow.barrier import Barrier
from escrow.cli import exits, remote, times
from escrow.cli.parsers import Commands
from escrow.consumer import Consumer
from escrow.errors import EscrowError
from escrow.messages import Check, End, Message, Outcome
from escrow.producer import Producer

TEACHES: Final = f"""\
Plays an order service against a running Escrow (escrow run, or make run): orders that are paid and
committed, refused and rolled back, a shop that sends no outcome and is asked for it, a shop that is
killed midway, one that never knows, one that never connects; and services that consume what was
committed. It prints what happens and where to look. Ctrl-C ends it.

Its producer groups, topic and consumer groups all begin with demo-; with tokens in use it needs one
that may produce and consume them (escrow token new demo --produce 'demo-*' --consume 'demo-*'), and
that is an operator's for the part where an operator asks.

{remote.HELP}"""

EXAMPLES: Final = f"""\
examples:
  escrow demo                                    a minute of it
  escrow demo --seconds 600 --rate 20            something to look at in escrow top or the console
  escrow run --set transactionCheckMax=2 --set transactionCheckInterval=5s
                                                 with these settings the demo shows a discard, too

{remote.EXIT_CODES}"""

TOPIC: Final = "demo-orders"
SHOP, CRASHING, UNDECIDED, ABANDONED = "demo-shop", "demo-crashing-shop", "demo-undecided-shop", "demo-abandoned-shop"
#: Each fate soon, then what is usual.
FIRST: Final = ("commit", "rollback", "silent", "crash", "abandoned", "undecided", "commit")
USUAL: Final = ("commit", "commit", "rollback", "commit", "silent", "commit", "commit", "rollback", "commit", "crash")
#: An operator asks about the first silent order, and about the first one of a killed shop, after this long.
OPERATOR_AFTER_S: Final = 3.0
OPERATOR_AGAIN_S: Final = 2.0
END_PATIENCE_S: Final = 10.0


def add_parser(subparsers: Commands) -> None:
    """Declares ``escrow demo``."""
    parser = exits.add_command(
        subparsers, "demo", run, summary="play producers and consumers, and tell what happens", teaches=TEACHES, examples=EXAMPLES
    )
    parser.add_argument("--seconds", metavar="N", type=times.seconds, default=60.0, help="how long to send orders (default: 60)")
    parser.add_argument("--rate", metavar="N", type=_rate, default=1.0, help="orders a second (default: 1)")
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Sends until the time is over or Ctrl-C, then tells how it ended."""
    with ExitStack() as stack:
        api = stack.enter_context(remote.connect(args))
        job = api.ready()["job"]["state"]  # not running: said at once, and how to start it
        demo = Demo(args, api, stack)
        if job != "running":
            demo.say("", "Spark is warming up: commits and roll-backs count already, Escrow asks as soon as it is there")
        with suppress(KeyboardInterrupt):
            demo.play(args.seconds, args.rate)
        with suppress(KeyboardInterrupt):
            demo.finish()
    return exits.OK


@dataclass(slots=True)
class Order:
    """An order, and what is known of it."""

    number: int
    fate: str
    group: str = SHOP
    id: str = ""
    #: What it ended as: commit or rollback; None while it is in doubt.
    outcome: str | None = None


@dataclass(slots=True)
class Told:
    """Sentences with the time since the start, one at a time."""

    began_s: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, who: str, what: str) -> None:
        with self.lock:
            print(f"{time.monotonic() - self.began_s:6.1f} s  {who:<9} {what}", flush=True)


class Demo:
    """The shops, the services behind them, and what became of each order."""

    def __init__(self, args: argparse.Namespace, api: Api, stack: ExitStack) -> None:
        self._args, self._api, self.say = args, api, Told()
        self._run = f"{os.getpid()}-{time.time_ns()}"
        self._orders: dict[int, Order] = {}
        self._shipped: set[int] = set()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._operator = True
        database = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="escrow-demo-"))) / "shop.db"
        self._database, self._barrier = database, Barrier()
        connection = sqlite3.connect(database)
        self._barrier.create_table(connection)
        connection.close()
        self._open_shops(stack)
        self._open_services(stack)

    # --- the participants -------------------------------------------------------------------------------------------------------
    def _options(self) -> dict[str, object]:
        ca_file = self._args.ca_file or os.environ.get("ESCROW_CA_FILE")
        return {"token": remote.token_of(self._args), "tls": tls_context(ca_file=ca_file) if ca_file else None}

    def _open_shops(self, stack: ExitStack) -> None:
        url, answer = remote.url_of(self._args), self._barrier.listener(lambda: sqlite3.connect(self._database, timeout=5))

        def shop(group: str, on_check: Callable[[Check], Outcome]) -> Producer:
            return stack.enter_context(Producer(url, group, on_check=on_check, **self._options()))  # type: ignore[arg-type]

        self._shop = shop(SHOP, self._remember)
        shop(CRASHING, lambda check: self._answer(check, answer(check), "its database tells"))
        shop(UNDECIDED, lambda check: self._answer(check, Outcome.UNKNOWN, "cannot tell"))
        # The abandoned shop has no member: its halves go over the plain API.

    def _open_services(self, stack: ExitStack) -> None:
        """Two consumer groups: each gets every order that is committed."""
        url = remote.url_of(self._args)
        for name, handle in (("shipping", self._ship), ("billing", self._bill)):
            options = self._options()
            consumer = Consumer(url, TOPIC, f"demo-{name}", auto_ack=False, start="latest", wait_s=10, **options)  # type: ignore[arg-type]
            stack.enter_context(consumer)
            threading.Thread(target=self._consume, args=(consumer, handle), name=f"demo-{name}", daemon=True).start()

    def _consume(self, consumer: Consumer, handle: Callable[[Delivery, int], None]) -> None:
        with suppress(EscrowError):
            for message in consumer:
                if message.properties.get("run") == self._run:
                    handle(message, int(message.properties["order"]))
                else:  # of an earlier demo
                    message.ack()

    def _ship(self, message: Delivery, number: int) -> None:
        self.say("shipping", f"got {_order(number)}")
        self._shipped.add(number)
        message.ack()

    def _bill(self, message: Delivery, number: int) -> None:
        """Stumbles over every tenth order, the first time."""
        if number % 10 == 1 and message.attempt == 1:
            self.say("billing", f"got {_order(number)} and stumbles: gives it back, and gets it again")
            message.nack(1.0)
            return
        if message.attempt > 1:
            self.say("billing", f"got {_order(number)} again (attempt {message.attempt}), and is done with it")
        message.ack()

    # --- check-backs ----------------------------------------------------------------------------------------------------------
    def _remember(self, check: Check) -> Outcome:
        """The silent shop, asked: it looks into its books."""
        return self._answer(check, Outcome(check.properties.get("books", "rollback")), "its books say")

    def _answer(self, check: Check, outcome: Outcome, why: str) -> Outcome:
        number = int(check.properties.get("order", 0))
        order = self._orders.get(number) if check.properties.get("run") == self._run else None
        if order is None:  # of an earlier demo: answered, not told
            return outcome
        self.say("check", f"Escrow asks about {_order(number)} (attempt {check.attempt}): {why}{_answered(outcome)}")
        if outcome is not Outcome.UNKNOWN:
            order.outcome = str(outcome)
        return outcome

    # --- the play -------------------------------------------------------------------------------------------------------------
    def play(self, seconds: float, rate: float) -> None:
        """Order after order, at a rate."""
        url = remote.url_of(self._args).rstrip("/")
        self.say("", f"look here meanwhile: {url}/ in a browser, or: escrow top · escrow tx list · escrow groups")
        end_s, due_s = time.monotonic() + seconds, time.monotonic()
        for number, fate in enumerate(chain(FIRST, cycle(USUAL)), 1):
            while (now_s := time.monotonic()) < due_s:
                self._do_later()
                time.sleep(min(0.05, due_s - now_s))
            if now_s >= end_s:
                return
            self._begin(Order(number, fate))
            due_s = max(due_s + 1 / rate, time.monotonic() - 1)

    def _do_later(self) -> None:
        now_s = time.monotonic()
        due, self._later = [act for at_s, act in self._later if at_s <= now_s], [each for each in self._later if each[0] > now_s]
        for act in due:
            act()

    def _begin(self, order: Order) -> None:
        self._orders[order.number] = order
        first = order.number <= len(FIRST)
        if order.fate in ("commit", "rollback"):
            self._usual(order, loud=first or order.number % 10 == 0)
        else:
            {"silent": self._silent, "crash": self._crash, "undecided": self._undecided, "abandoned": self._abandoned}[order.fate](
                order
            )
        if first and order.fate in ("silent", "crash"):
            self._later.append((time.monotonic() + OPERATOR_AFTER_S, lambda: self._ask(order)))

    def _message(self, order: Order, **more: str) -> Message:
        properties = {"run": self._run, "order": str(order.number), **more}
        return Message(TOPIC, f"order {order.number}", key=f"customer-{order.number % 7}", tags=order.fate, properties=properties)

    def _usual(self, order: Order, *, loud: bool) -> None:
        outcome = Outcome(order.fate)
        half = self._shop.send_half(self._message(order))
        order.id = half.id
        why = "the card was charged" if outcome is Outcome.COMMIT else "the card was refused"
        if loud:
            self.say("shop", f"{_order(order.number)} is stored as a half, and cannot be seen; {why}{_answered(outcome)}")
        order.outcome = order.fate
        self._shop.end(half.id, outcome, remark=why)

    def _silent(self, order: Order) -> None:
        books = "commit" if order.number % 2 else "rollback"
        order.id = self._shop.send_half(self._message(order, books=books)).id
        self.say("shop", f"{_order(order.number)} is stored as a half, and then the shop says nothing")

    def _crash(self, order: Order) -> None:
        """A process of its own that is killed at the worst moment: its database has committed, Escrow has not heard of it."""
        order.group = CRASHING
        message = self._message(order)
        environ = {**os.environ, "ESCROW_TOKEN": remote.token_of(self._args) or "", "ESCROW_TOKEN_FILE": ""}
        command = [
            sys.executable,
            "-m",
            "escrow.cli.demo_victim",
            remote.url_of(self._args),
            str(self._database),
            str(order.number),
        ]
        command += [message.key, *(f"{name}={value}" for name, value in message.properties.items())]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        with victim:
            assert victim.stdout is not None
            order.id = victim.stdout.readline().strip()
            victim.kill()
        if not order.id:
            del self._orders[order.number]
            self.say("shop 2", f"could not send {_order(order.number)}: its process ended with code {victim.returncode}")
            return
        self.say(
            "shop 2", f"{_order(order.number)} is a half, its database has it, and before it can say COMMIT: kill -9 {victim.pid}"
        )

    def _undecided(self, order: Order) -> None:
        order.group = UNDECIDED
        [half] = self._api.send_halves(UNDECIDED, [self._message(order)])
        order.id = half.id
        self._api.end(UNDECIDED, [End(half.id, Outcome.UNKNOWN, "the bank does not answer")])
        self.say("shop 3", f"{_order(order.number)} is a half; whenever it is asked about it, it will not know")

    def _abandoned(self, order: Order) -> None:
        order.group = ABANDONED
        [order_half] = self._api.send_halves(ABANDONED, [self._message(order)])
        order.id = order_half.id
        self.say("shop 4", f"{_order(order.number)} is a half of a shop that is gone: no member of its group can be asked")

    def _ask(self, order: Order) -> None:
        """What an operator may do: have it asked about now, not in the next round."""
        if order.outcome is not None or not self._operator:
            return
        try:
            answer = self._api.act("check", "demo: the order service fell silent", ids=[order.id])
        except EscrowError as error:
            self._operator = False
            self.say("operator", f"may not ask ({error}); Escrow asks by itself: transactionTimeOut 6 s, a round every 30 s")
            return
        if answer["counts"]["refused"]:  # the job has not read it yet: Spark takes half a minute to get warm
            self._later.append((time.monotonic() + OPERATOR_AGAIN_S, lambda: self._ask(order)))
            return
        self.say(
            "operator", f"has Escrow ask about {_order(order.number)} at once; it would have asked by itself in its next round"
        )

    # --- the end --------------------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Asks about what is in doubt, waits a little, and tells how it all ended."""
        self._orders = {number: order for number, order in self._orders.items() if order.id}  # one may have been interrupted
        doubtful = [order for order in self._orders.values() if order.outcome is None and order.group in (SHOP, CRASHING)]
        if doubtful and self._operator:
            self.say("", f"the end: an operator asks about {len(doubtful)} that are still in doubt")
            with suppress(EscrowError):
                self._api.act("check", "demo: the end", ids=[order.id for order in doubtful])
        until_s = time.monotonic() + END_PATIENCE_S
        while time.monotonic() < until_s and not self._is_over():
            time.sleep(0.05)
        self._sum_up()

    def _is_over(self) -> bool:
        answered = all(order.outcome for order in self._orders.values() if order.group in (SHOP, CRASHING))
        return answered and self._committed() <= self._shipped

    def _committed(self) -> set[int]:
        return {order.number for order in self._orders.values() if order.outcome == "commit"}

    def _sum_up(self) -> None:
        orders = list(self._orders.values())
        committed, rolled_back = self._committed(), {order.number for order in orders if order.outcome == "rollback"}
        in_doubt = [order for order in orders if order.outcome is None]
        print(f"\n{len(orders)} orders: {len(committed)} committed, {len(rolled_back)} rolled back, {len(in_doubt)} in doubt.")
        late, wrong = committed - self._shipped, self._shipped & rolled_back
        if not late and not wrong:
            print("Shipping got every order that was committed, and none that was rolled back.")
        else:
            print(f"Shipping has not got yet: {sorted(late) or 'none'}; it should not have got: {sorted(wrong) or 'none'}.")
        for order in in_doubt:
            state = self._api.transaction(order.id)["state"].lower().replace("_", " ")
            print(f"  {_order(order.number)} ({order.fate}) is {state}: {order.id}")
        if in_doubt:
            id = in_doubt[0].id
            print(f"Now you are the operator:\n  escrow tx show {id}\n  escrow tx rollback {id} --reason 'the shop is gone'")


def _order(number: int) -> str:
    return f"order {number}"


def _answered(outcome: Outcome) -> str:
    return f" -> {outcome.name}"


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of orders a second, up to 1000")
    return rate
