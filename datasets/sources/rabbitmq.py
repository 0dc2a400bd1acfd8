"""Stream the messages of a RabbitMQ queue, acknowledged once a checkpoint covers them."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from sys import maxsize
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.files.clients import get_retry_s
from penstock.datasets.files.passwords import from_environment, masked
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.streams.messages import Message, MessageSource

log = logging.getLogger(__name__)

_PAUSE_S = 1.0
_TICK_S = 0.2
_END_S = 2.0
_YIELD_S = 0.001  # so that another thread can acknowledge
_AHEAD = 200
"""Messages to fetch at a time."""
# The kernel notices a broker that is gone, also while nothing reads from the connection.
_KEEP_ALIVE = {
    "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000,
}  # fmt: skip


class _Tag(NamedTuple):
    """The tag of a message, and its connection, the only one that can acknowledge it."""

    link: _Link
    tag: int


@register("source", "rabbitmq")
class RabbitSource(MessageSource):
    """Messages of a RabbitMQ queue; each goes to one reader, at least once.

    A message is acknowledged when a checkpoint contains the step that trained on it. The broker
    redelivers the others, to this run when it resumes, or to another reader. Two runs get
    different messages, so only their count is exact.

    Args:
        url: ``amqp://user@host:5672/vhost``, or ``env:NAME``, a variable that holds it.
        queue: The queue, which must exist.
        value: The field that a message holds, or ``json``: an object whose items are the fields.
        label: The place of the label: ``key`` (the routing key), or the name of a header; None:
            among the fields.
        classes: Class names by id, or their number; None: labels are ids.
        paths: Fields of objects that name files.
        base64: Fields of objects that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        count: Messages of an epoch; None: any number.
        idle_s: Seconds without a message after which an epoch ends; None: wait for messages. Only
            time when the broker answers and the queue is empty counts.
    """

    reopens = False
    continues = True

    def __init__(
        self,
        url: str,
        *,
        queue: str,
        value: str = "image",
        label: str | None = None,
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        base64: list[str] = [],  # noqa: B006
        root: str = ".",
        count: Annotated[int, Ge(1)] | None = None,
        idle_s: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(
            value=value, label=label, classes=classes, paths=paths, base64=base64, root=root
        )
        self.most, self.idle_s = count, idle_s
        self._url, self._queue = from_environment(url, setting="dataset.source.url"), queue
        self._link: _Link | None = None
        self._taken: list[_Tag] = []  # in this epoch, not acknowledged
        self._first = 0  # position of the first of them
        self._acknowledges = False
        self._connect(0).close()

    def __str__(self) -> str:
        return f"rabbitmq {self._queue} at {masked(self._url) if '://' in self._url else 'its URL'}"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_link": None, "_taken": []}

    def shards(self, epoch: int) -> list[str]:
        return [self._queue]

    def count(self, shard: str) -> int:
        return self.most or maxsize

    def read(self, shard: str, start: int) -> Generator[Message]:
        """Read the messages of an epoch; the last epoch's messages without a batch come again."""
        if self._acknowledges and self._link is not None:
            self._link.settle(self._taken, again=True)
        self._taken, self._first = [], start
        for position in range(start, self.most or maxsize):
            if (given := self._next()) is None:
                why = f"no message within dataset.source.idle_s={self.idle_s:g} s"
                if not position:
                    raise StreamError(f"{self}: {why}; have some published, or raise it")
                log.info("%s: the epoch ends after %d messages: %s", self, position, why)
                return
            self._taken.append(given[0])
            yield given[1]
        log.info("%s: the epoch ends: dataset.source.count=%d", self, self.most)

    def fingerprint(self) -> str:
        return f"{self._queue} {self.most}"

    def acknowledge(self, records: int) -> None:
        self._acknowledges = True
        taken = self._taken[: max(0, records - self._first)]
        del self._taken[: len(taken)]
        self._first += len(taken)
        if (link := self._link) is not None:
            link.settle(taken)

    def _next(self) -> tuple[_Tag, Message] | None:
        """Wait for the next message; None if the queue stays empty for `idle_s`."""
        from pika import exceptions

        empty_since = None
        while True:
            still_wanted()
            try:
                if self._link is None:
                    self._link = self._connect(get_retry_s())
                    weakref.finalize(self, self._link.close)
                if (given := self._link.poll()) is not None:
                    return given
                is_empty = self._link.is_empty()
            except (exceptions.AMQPError, OSError) as error:
                if self._link is not None:
                    self._link.close()
                self._link = is_empty = None
                what = "messages that no checkpoint holds come again"
                log.warning("%s: connection lost (%s); %s", self, _cause(error), what)
            now = time.monotonic()
            empty_since = (empty_since or now) if is_empty else None
            if self.idle_s and empty_since and now - empty_since > self.idle_s:
                return None
            time.sleep(_YIELD_S)

    def _connect(self, retry_s: float) -> _Link:
        """Connect to the queue, trying for `retry_s`."""
        try:
            import pika
            from pika import exceptions
        except ImportError as error:
            what = "the package pika is missing (the extra rabbitmq)"
            raise ValueError(f"rabbitmq: {what}; run: pip install pika") from error
        try:
            parameters = pika.URLParameters(self._url)
        except (ValueError, TypeError, LookupError):
            expected = "amqp://user:password@host:5672/vhost, with @ : / in them as %40 %3A %2F"
            raise ValueError(f"{self}: invalid address; expected {expected}") from None
        parameters.heartbeat, parameters.tcp_options = 0, _KEEP_ALIVE
        parameters.connection_attempts = 1 + int(retry_s / _PAUSE_S)
        parameters.retry_delay = _PAUSE_S
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # errors are raised
        try:
            return _Link(pika.BlockingConnection(parameters), self._queue)
        except (exceptions.AMQPError, OSError) as error:
            raise StreamError(
                f"{self}: {_cause(error)}; check that the broker runs, dataset.source.queue, and "
                f"the address, user, password, vhost and permissions of dataset.source.url"
            ) from None


class _Link:
    """A connection to a queue, which one thread at a time uses.

    A consumer receives at most `_AHEAD` messages without an acknowledgement. When all of them
    are taken, another consumer replaces it. So few messages wait here, while any number may wait
    for a checkpoint.
    """

    def __init__(self, connection: Any, queue: str) -> None:
        self.lock = threading.Lock()
        self._connection, self._queue = connection, queue
        self.channel = connection.channel()
        self.channel.queue_declare(queue, passive=True)
        self.channel.basic_qos(prefetch_count=_AHEAD)
        self._ready: deque[tuple[_Tag, Message]] = deque()
        self._received = self._wanted = 0
        self._consumer = ""

    def poll(self) -> tuple[_Tag, Message] | None:
        """Take the next message, or wait for it briefly."""
        from pika import exceptions

        with self.lock:
            if not self.channel.is_open:  # `settle` noticed it; pika would raise AssertionError
                raise exceptions.ChannelWrongStateError("the connection is lost")
            if not self._ready:
                if self._received >= self._wanted:
                    if self._consumer:
                        self.channel.basic_cancel(self._consumer)
                    self._wanted = self._received + _AHEAD
                    self._consumer = self.channel.basic_consume(self._queue, self._receive)
                self._connection.process_data_events(time_limit=_TICK_S)
            return self._ready.popleft() if self._ready else None

    def is_empty(self) -> bool:
        """Ask the broker whether the queue is empty."""
        with self.lock:
            state = self.channel.queue_declare(self._queue, passive=True)
            return not state.method.message_count and not self._ready

    def settle(self, taken: list[_Tag], *, again: bool = False) -> None:
        """Acknowledge messages of this connection, or let them come `again`."""
        from pika import exceptions

        with self.lock, suppress(exceptions.AMQPError, OSError):
            settle = self.channel.basic_nack if again else self.channel.basic_ack
            for link, tag in taken:
                if link is self:
                    settle(tag)

    def close(self) -> None:
        """Close the connection; the broker redelivers unacknowledged messages."""
        from pika import exceptions

        if self.lock.acquire(timeout=_END_S):
            with suppress(exceptions.AMQPError, OSError):
                self._connection.close()
            self.lock.release()

    def _receive(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._received += 1
        key = str(properties.message_id or self._received)
        message = Message(key, body, method.routing_key, properties.headers or {})
        self._ready.append((_Tag(self, method.delivery_tag), message))


def _cause(error: Exception) -> str:
    return " ".join(repr(error).split())[:300]
