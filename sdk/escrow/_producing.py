"""What `Producer` and `AsyncProducer` have in common: their arguments, what a transaction block knows, what its result means."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Generic, Literal, TypeVar

from escrow import _open_transactions
from escrow._arguments import require_function, require_message, require_on_error
from escrow._background import BackgroundEnds, EndCounts, refusal_of
from escrow._batch_policy import Limits
from escrow._sender import Engine
from escrow.api import Api
from escrow.errors import EscrowError, NotCommitted, NotEnded
from escrow.messages import Check, End, Half, Message, Outcome, TransactionResult, remark_of

log: Final = logging.getLogger("escrow.producer")

_T = TypeVar("_T")
_Listener = TypeVar("_Listener", bound=Callable[[Check], object])

#: What a local transaction is, for a caller that passed something else.
RETURNS_OUTCOME: Final = "it gets the message and `arg`, runs the local transaction and returns an Outcome"


#: Patience where the caller names none. A half is what a request handler begins with, and nothing has happened before it: the
#: handler should hear soon that Escrow is away. After the local transaction it is worth waiting for.
HALVES_RETRY_FOR_S: Final = 5.0
RETRY_FOR_S: Final = 30.0


class ProducerBase(Generic[_Listener]):
    """Arguments and the engine. `Producer` says what the arguments mean."""

    #: A listener may be a coroutine function.
    _awaits: ClassVar[bool]

    def __init__(
        self,
        url: str,
        group: str,
        *,
        on_check: _Listener | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        linger_s: float = 0.0,
        batch_max: int = 256,
        timeout_s: float = 10.0,
        retry_for_s: float | None = None,
        member: str | None = None,
        check_threads: int = 4,
        check_wait_s: float = 30.0,
        end: Literal["wait", "background"] = "wait",
        on_not_ended: Callable[[NotEnded], object] | None = None,
    ) -> None:
        _check_end(end, on_check, on_not_ended)
        if on_check is not None:
            require_function("on_check", on_check, "it gets a Check and returns an Outcome", may_be_coroutine=self._awaits)
        patience_s = RETRY_FOR_S if retry_for_s is None else retry_for_s
        limits = Limits(linger_s=linger_s, batch_max=batch_max, retry_for_s=patience_s, timeout_s=timeout_s)
        begin = replace(limits, retry_for_s=HALVES_RETRY_FOR_S) if retry_for_s is None else limits
        api = Api(url, token=token, tls=tls, timeout_s=timeout_s, retry_for_s=patience_s)
        self._engine = Engine(api, group, limits, begin)
        self._in_background, self._background = end == "background", BackgroundEnds(on_not_ended)
        self._member, self._check_threads, self._check_wait_s = member, check_threads, check_wait_s
        if on_check is not None:
            self._listen_to(on_check)

    def _listen_to(self, on_check: _Listener) -> None:
        """Have check requests answered by it, now or when the producer starts."""
        raise NotImplementedError

    def _listen(self, listener: Callable[[Check], object]) -> None:
        self._engine.listen(listener, self._member, threads=self._check_threads, wait_s=self._check_wait_s)

    @property
    def group(self) -> str:
        return self._engine.group

    @property
    def ends(self) -> EndCounts:
        """What has become of the ends that were said in the background (`end="background"`)."""
        return self._background.counts


class Begun:
    """What a transaction block knows, whether it is a `with` or an `async with`."""

    def __init__(self, message: Message, on_error: Outcome) -> None:
        require_message(message)
        require_on_error(on_error)
        self._on_error = on_error
        self._half: Half | None = None
        #: With its `transaction_id`, from the beginning of the block.
        self.message = message
        self.result: TransactionResult | None = None

    @property
    def id(self) -> str:
        """The half's id: what a barrier row is about."""
        return self._stored().id

    @property
    def half_offset(self) -> int:
        return self._stored().half_offset

    def _stored(self) -> Half:
        if self._half is None:
            raise ValueError("this transaction has not begun: enter its block")
        return self._half

    def _begin(self, half: Half) -> None:
        self._half, self.message = half, self.message.with_id(half.id)

    def _refuse_again(self) -> None:
        if self._half is not None:
            raise ValueError("this transaction was used before: make another one")

    def _refuse_second(self) -> None:
        if self.result is not None and self._is_over():
            raise ValueError(f"{self.id}: {self.result.outcome.name} was said already; the first outcome stands")

    def _is_over(self) -> bool:
        """COMMIT or ROLLBACK was said."""
        return self.result is not None and self.result.outcome is not Outcome.UNKNOWN


def _check_end(end: str, on_check: object, on_not_ended: object) -> None:
    if end not in ("wait", "background"):
        raise ValueError(f'end: is {end!r}; pass "wait" or "background"')
    if end == "background" and on_check is None:
        raise ValueError(
            'end: "background" needs on_check: a process that dies before its end is sent leaves the outcome to check-back'
        )
    if end == "wait" and on_not_ended is not None:
        raise ValueError('on_not_ended: is for end="background"; a call that waits raises EndConflict and EndRefused itself')


def checked(result: TransactionResult) -> TransactionResult:
    """The result, or the error that it stands for. What was not delivered is only logged: check-back settles it."""
    not_ended = refusal_of(result)
    if not_ended is not None:
        raise not_ended
    if result.answer is None and not result.in_background:
        log.warning("%s: %s was not delivered (%s); check-back settles it", result.id, result.outcome.name, result.error)
    return result


def say_unknown(end: Callable[[Sequence[End]], _T], half: Half, error: BaseException) -> _T | None:
    """Note for the history why nothing was said. It is not waited for: it settles nothing, and the error is more urgent."""
    try:
        return end([End(half.id, Outcome.UNKNOWN, remark_of(error))])
    except EscrowError:
        return None  # closed: the check will find out without the remark


def refused_commit(end: Callable[[Sequence[End]], object], half: Half) -> NotCommitted:
    """COMMIT was said too early: UNKNOWN is said instead, and this is raised."""
    error = _open_transactions.not_committed(half.id)
    say_unknown(end, half, error)
    return error


def say_quietly(say: Callable[[str], TransactionResult], remark: str) -> None:
    """While another exception is on its way: that one must be heard."""
    try:
        say(remark)
    except EscrowError as error:
        log.error("%s", error)
