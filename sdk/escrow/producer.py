"""The producer: sends a half, runs the local transaction, says how it went; answers when Escrow asks.

    with escrow.Producer("http://127.0.0.1:7480", "orders", on_check=barrier.listener(connect)) as producer:
        with producer.transaction(Message("order-paid", "order 42")) as tx:
            with connect() as db:
                barrier.record(db, tx.id)
                db.execute("UPDATE …")

What is raised, and when:

    before the local transaction   whatever the send met; the local transaction was not run, and the half, should it have been
                                   stored nevertheless, is asked about and rolled back
    by the local transaction       its own exception, unchanged, after UNKNOWN was handed in with the exception's text as remark
    after the local transaction    EndConflict and EndRefused: Escrow answered, and the half ended otherwise than was said.
                                   NotCommitted: the database transaction with the barrier row is still open; UNKNOWN was said.
                                   An end that could not be delivered raises nothing: the local transaction is a fact, and
                                   check-back settles the half. `TransactionResult.error` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from escrow import _open_transactions
from escrow._arguments import require_function, require_message
from escrow._otel import span
from escrow._producing import RETURNS_OUTCOME, Begun, ProducerBase, checked, refused_commit, say_quietly, say_unknown
from escrow.errors import EscrowError
from escrow.messages import Check, End, EndAnswer, Half, Message, Outcome, Position, TransactionResult, outcome_of, remark_of

_Arg = TypeVar("_Arg")

#: What answers a check: only an Outcome settles the half.
Listener = Callable[[Check], Outcome | None]


class Producer(ProducerBase[Listener]):
    """Sends transactional and ordinary messages of one producer group. One for a process; for any number of threads.

    url, group        where Escrow is, and the producer group: it ends its halves and is asked about them
    on_check          answers check-backs, in a background thread; without it this producer is never asked, and logs a warning
                      with its first half
    token, tls        a bearer token (or a function that gives one), an SSL context (`escrow.tls_context`)
    linger_s          how long a message that came while a request was under way waits for company; one caller alone never waits
    batch_max         messages in one shared request (1: none is shared, each caller makes its own; ordinary messages of an
                      `AsyncProducer` still go one after another, or they would lose their order)
    timeout_s         for one attempt
    retry_for_s       how long a call that may be repeated is tried again: halves (they carry a dedup_key) and ends always, ordinary
                      messages only where they were certainly not stored. None: halves 5 s, so that a request handler hears soon
                      that Escrow is away, everything else 30 s
    member            a name for this process among the group's members; one is made up otherwise
    check_threads     check-backs answered at the same time
    end               "wait": a transaction returns when Escrow has answered its end. "background": it returns when the local
                      transaction is decided; the end is sent at once and retried until it is answered. Needs on_check
    on_not_ended      with end="background": gets the EndConflict or EndRefused that a call which waits would raise
    """

    _awaits = False

    def _listen_to(self, on_check: Listener) -> None:
        self._listen(on_check)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Answer the checks in hand, send what was handed in, end the threads. True when that was done in time."""
        return self._engine.close(timeout_s)

    # --- transactions -----------------------------------------------------------------------------------------------------
    def send_in_transaction(
        self,
        message: Message,
        local_transaction: Callable[[Message, _Arg], Outcome | None],
        arg: _Arg = None,  # type: ignore[assignment]
    ) -> TransactionResult:
        """Send a half, run the local transaction, say how it went.

        0  what cannot be run is refused (TypeError), and nothing was sent
        1  the half is sent; if that fails, the error is raised and nothing was run
        2  local_transaction(message, arg) runs here; `message.transaction_id` is the half's id, for a barrier row
        3  the Outcome that it returned is said. Anything else that it returned is UNKNOWN, and so is an exception, which is
           raised on
        """
        require_message(message)  # 0
        require_function("local_transaction", local_transaction, RETURNS_OUTCOME, may_be_coroutine=False)
        half = self.send_half(message)  # 1
        try:
            with span("local transaction", transaction_id=half.id):
                returned = local_transaction(message.with_id(half.id), arg)  # 2
        except BaseException as error:
            say_unknown(self._engine.end_soon, half, error)
            raise
        outcome, remark = outcome_of(returned, "the local transaction")  # 3
        return checked(self._finish(half, outcome, remark))

    def transaction(self, message: Message, *, on_error: Outcome = Outcome.UNKNOWN) -> Transaction:
        """The same as a `with` block: the half is sent on entering, and leaving the block normally commits.

        An exception in the block says UNKNOWN, and check-back finds out: an exception may come out of the database's own
        COMMIT, which then may have happened or not. Where you know that an exception always means that the local transaction
        was rolled back, `on_error=Outcome.ROLLBACK` settles it at once.
        """
        return Transaction(self, message, on_error)

    def _finish(self, half: Half, outcome: Outcome, remark: str) -> TransactionResult:
        """Say the outcome; what came of it, unless that is left to the background."""
        probe = _open_transactions.forget(half.id)
        if outcome is Outcome.COMMIT and _open_transactions.is_open(probe):
            raise refused_commit(self._engine.end_soon, half)
        if self._in_background:
            return self._engine.end_in_background(half, outcome, remark, self._background)
        answer, failure = None, None
        try:
            with span("end", transaction_id=half.id, outcome=outcome):
                [answer] = self._engine.end([End(half.id, outcome, remark)])
        except EscrowError as error:
            failure = error
        return TransactionResult(half.id, half.half_offset, outcome, answer, remark, failure)

    # --- the parts --------------------------------------------------------------------------------------------------------
    def send_half(self, message: Message) -> Half:
        """Store one half. End it with `end`."""
        return self._engine.send_halves([message])[0]

    def send_halves(self, messages: Sequence[Message]) -> list[Half]:
        """Store halves, all or none."""
        return self._engine.send_halves(list(messages))

    @overload
    def send(self, messages: Message) -> Position: ...
    @overload
    def send(self, messages: Sequence[Message]) -> list[Position]: ...
    def send(self, messages: Message | Sequence[Message]) -> Position | list[Position]:
        """Ordinary messages, visible at once: one, or several (all or none).

        After `Unreachable` with `maybe_done` they may have been stored: send them again if a second copy does no harm."""
        if isinstance(messages, Message):
            return self._engine.send_messages([messages])[0]
        return self._engine.send_messages(list(messages))

    def end(self, id: str, outcome: Outcome, *, remark: str = "") -> EndAnswer:
        """Say how a half ended. The answer is Escrow's verdict, whatever it is."""
        return self.end_all([End(id, outcome, remark)])[0]

    def end_all(self, ends: Sequence[End]) -> list[EndAnswer]:
        """Say how several halves ended; each is answered for itself."""
        ends = list(ends)
        for end in ends:
            probe = _open_transactions.forget(end.id)
            if end.outcome is Outcome.COMMIT and _open_transactions.is_open(probe):
                raise _open_transactions.not_committed(end.id)
        return self._engine.end(ends)

    def state(self, id: str) -> dict[str, Any]:
        """State and history of one transaction, as Escrow has them."""
        return self._engine.api.transaction(id)


class Transaction(Begun):
    """One transaction as a `with` block; `Producer.transaction` makes it. `result` is there after the end was said."""

    def __init__(self, producer: Producer, message: Message, on_error: Outcome) -> None:
        super().__init__(message, on_error)
        self._producer = producer

    def __enter__(self) -> Self:
        self._refuse_again()
        self._begin(self._producer.send_half(self.message))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_over():
            return
        if error is None:
            if self.result is None:
                self.commit()
        elif self._on_error is Outcome.UNKNOWN:
            say_unknown(self._producer._engine.end_soon, self._stored(), error)
        else:
            say_quietly(self.rollback, remark_of(error))

    def commit(self) -> TransactionResult:
        """Say COMMIT now: after the local transaction is committed, never before."""
        return self._say(Outcome.COMMIT, "")

    def rollback(self, remark: str = "") -> TransactionResult:
        """Say ROLLBACK now: the message will never be seen."""
        return self._say(Outcome.ROLLBACK, remark)

    def unknown(self, remark: str = "") -> TransactionResult:
        """Leave it to check-back. Leaving the block then says nothing more."""
        return self._say(Outcome.UNKNOWN, remark)

    def _say(self, outcome: Outcome, remark: str) -> TransactionResult:
        self._refuse_second()
        self.result = self._producer._finish(self._stored(), outcome, remark)
        return checked(self.result)
