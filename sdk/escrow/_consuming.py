"""What `Consumer` and `AsyncConsumer` have in common: their arguments."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence

from escrow._exits import own_name
from escrow._inbox import Reading
from escrow._transport import Server


class ConsumerBase:
    """`Consumer` says what the arguments mean."""

    def __init__(
        self,
        url: str,
        topics: str | Sequence[str],
        group: str,
        *,
        auto_ack: bool = True,
        consumer: str | None = None,
        token: str | Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        tags: str = "",
        start: str | int | None = None,
        prefetch: int = 32,
        visibility_s: float = 30.0,
        extend_for_s: float = 600.0,
        idle_s: float | None = None,
        wait_s: float = 30.0,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
    ) -> None:
        self._auto_ack, self._idle_s = auto_ack, idle_s
        self._reading = Reading(
            (topics,) if isinstance(topics, str) else tuple(topics),
            group,
            consumer or own_name(),
            tags=tags,
            start=start,
            prefetch=prefetch,
            visibility_s=visibility_s,
            extend_for_s=extend_for_s,
            wait_s=wait_s,
        )
        self._server = Server(url, token=token, tls=tls, timeout_s=timeout_s, retry_for_s=retry_for_s)
        self._begin()

    def _begin(self) -> None:
        """What is made with the consumer itself."""
