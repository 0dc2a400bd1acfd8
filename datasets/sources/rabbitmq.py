"""Stream the messages of a RabbitMQ queue, acknowledged once a checkpoint covers them."""

from __future__ import annotations

import hashlib
import json
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from sys import maxsize
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.clients import get_retry_s
from penstock.datasets.files.passwords import from_environment, masked
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.streams.messages import Message, MessageSource, labelled

if TYPE_CHECKING:
    from pika import BlockingConnection, URLParameters

log = logging.getLogger(__name__)

_PAUSE_S = 0.5
_TICK_S = 0.2
_END_S = 2.0
_TOLD_S = 60.0
_AHEAD = 200
"""Messages to fetch at a time; as many again wait to be taken."""


class QueueTrouble(ExplainedError):
    """A persistent error of the broker or the queue, not damaged data."""


class _Given(NamedTuple):
    """A message and its connection, the only one that can acknowledge it."""

    connection: int
    tag: int
    message: Message | BadRecord


@dataclass(frozen=True, slots=True)
class _Place:
    """A queue of the broker at a URL, which holds the password."""

    url: str
    queue: str
    label: str | None

    def __str__(self) -> str:
        parameters = _parameters(self.url)
        return f"rabbitmq {self.queue} at {parameters.host}:{parameters.port}"

    def connect(self) -> tuple[BlockingConnection, Any]:
        """Connect to the queue, retrying for ``dataset.retry_s``; return connection and channel."""
        import pika
        from pika import exceptions

        logging.getLogger("pika").setLevel(logging.CRITICAL)  # errors are raised
        refusals = (
            exceptions.ChannelClosedByBroker, exceptions.ProbableAuthenticationError,
            exceptions.ProbableAccessDeniedError, exceptions.AuthenticationError,
        )  # fmt: skip
        deadline = time.monotonic() + get_retry_s()
        while True:
            connection = None
            try:
                connection = pika.BlockingConnection(_parameters(self.url))
                channel = connection.channel()
                channel.queue_declare(self.queue, passive=True)
                return connection, channel
            except (exceptions.AMQPError, OSError) as error:
                with suppress(exceptions.AMQPError, OSError):
                    if connection is not None:
                        connection.close()
                if isinstance(error, refusals):
                    raise self.refusal(error) from None
                if time.monotonic() > deadline:
                    raise QueueTrouble(
                        f"{self}: cannot be reached: {_cause(error)}; check dataset.source.url, "
                        f"and that the broker runs"
                    ) from None
            time.sleep(_PAUSE_S)

    def refusal(self, error: Exception) -> QueueTrouble:
        """Explain why the broker refuses a connection or the queue."""
        return QueueTrouble(
            f"{self}: refused: {_cause(error)}; check dataset.source.queue, and the user, "
            f"password, vhost and permissions of dataset.source.url"
        )


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
        self._place = _Place(from_environment(url, setting="dataset.source.url"), queue, label)
        self._name = str(self._place)
        self._feed: _Feed | None = None
        self._before: list[_Given] = []  # of the last epoch, not in any batch
        self._taken: list[_Given] = []  # in this epoch, not acknowledged
        self._first = 0  # position of the first of them
        self._acknowledges = False
        try:
            self._place.connect()[0].close()
        except QueueTrouble as error:
            raise ValueError(str(error)) from error

    def __str__(self) -> str:
        return self._name

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_feed": None, "_before": [], "_taken": []}

    def shards(self, epoch: int) -> list[str]:
        """Return the queue's name."""
        return [self._place.queue]

    def count(self, shard: str) -> int:
        """Return the messages of an epoch, so that a resumed run skips earlier messages unread."""
        return self.most or maxsize

    def read(self, shard: str, start: int) -> Generator[Message | BadRecord]:
        """Read the messages of an epoch, first the last epoch's messages that were not in a batch.

        Raises:
            QueueTrouble: The queue was idle from the start, or the broker stays away.
        """
        if self._feed is None:
            self._feed = _Feed(self._place)
            self._feed.start()
            weakref.finalize(self, self._feed.end)
        self._before = [*self._taken, *self._before] if self._acknowledges else []
        self._taken, self._first, position = [], start, start
        while self.most is None or position < self.most:
            given = None
            while self._before and given is None:
                given = self._feed.still_valid(self._before.pop(0))
            given = given or self._wait(self._feed, position)
            if given is None:
                return
            position += 1
            self._taken.append(given)
            yield given.message
        log.info("%s: the epoch ends: it has dataset.source.count=%d messages", self, self.most)

    def fingerprint(self) -> str:
        """Hash the queue's name, and the size of an epoch."""
        text = json.dumps([self._place.queue, self.most])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def acknowledge(self, records: int) -> None:
        """Acknowledge the first `records` of the current epoch, which a checkpoint contains."""
        self._acknowledges = True
        taken = self._taken[: max(0, records - self._first)]
        del self._taken[: len(taken)]
        self._first += len(taken)
        if self._feed is not None:
            self._feed.acknowledge(taken)

    def _wait(self, feed: _Feed, position: int) -> _Given | None:
        """Wait for the next message; None ends the epoch, because the queue is empty."""
        begin = told = time.monotonic()
        while True:
            given = feed.take()
            if given is not None:
                return given
            still_wanted()
            now = time.monotonic()
            if now - told > _TOLD_S:
                told = now
                log.info("%s: no message for %d s; waiting", self, now - begin)
            since, checked = feed.empty
            if self.idle_s is not None and checked - max(since, begin) > self.idle_s:
                break
        if not position:
            raise QueueTrouble(
                f"{self}: gave no message within idle_s={self.idle_s:g} s; have some published, "
                f"or raise dataset.source.idle_s"
            )
        log.info(
            "%s: the epoch ends after %d messages: the queue is empty, and gave no message within "
            "dataset.source.idle_s=%g s", self, position, self.idle_s,
        )  # fmt: skip
        return None


class _Feed(threading.Thread):
    """Receives and acknowledges messages; the thread also answers the broker's heartbeats.

    A consumer receives at most `_AHEAD` messages without an acknowledgement. When most of them
    are taken, another consumer replaces it. So few messages wait here, while any number may wait
    for a checkpoint.

    Attributes:
        empty: First and last time that the broker reported an empty queue, or zeros.
    """

    def __init__(self, place: _Place) -> None:
        super().__init__(name="penstock-rabbitmq", daemon=True)
        self.empty = 0.0, 0.0
        self._place = place
        self._ready: queue.SimpleQueue[_Given] = queue.SimpleQueue()
        self._trouble: str | None = None
        self._ended = False
        self._connection: Any = None
        self._channel: Any = None
        self._consumer: str | None = None
        self._connections = self._received = self._wanted = 0

    def take(self) -> _Given | None:
        """Take the next message; None if there is none yet."""
        try:
            given = self._ready.get(timeout=0 if self._trouble else _TICK_S)
        except queue.Empty:
            if self._trouble is not None:
                raise QueueTrouble(self._trouble) from None
            return None
        if self._ready.qsize() == _AHEAD // 2:
            self._call(lambda: None)  # wakes the thread to request more
        return self.still_valid(given)

    def still_valid(self, given: _Given) -> _Given | None:
        """Return a message of the current connection, or None; the broker redelivers others."""
        return given if given.connection == self._connections else None

    def acknowledge(self, taken: list[_Given]) -> None:
        """Acknowledge messages of the current connection."""

        def send() -> None:
            for given in filter(self.still_valid, taken):
                self._channel.basic_ack(given.tag)

        self._call(send)

    def end(self) -> None:
        """Close the connection; the broker redelivers unacknowledged messages."""
        self._ended = True
        self._call(lambda: None)
        self.join(_END_S)

    def run(self) -> None:
        """Receive messages; reconnect when a connection is lost."""
        from pika import exceptions

        try:
            while not self._ended:
                connection, channel = self._place.connect()
                self._connections += 1
                self._connection, self._channel, self._consumer = connection, channel, None
                self._wanted = self._received
                channel.add_on_cancel_callback(self._deleted)
                try:
                    self._receive_from(connection)
                except exceptions.ChannelClosedByBroker as error:
                    if error.reply_code in (403, 404, 405):
                        raise self._place.refusal(error) from error
                    self._report_lost(error)
                except (exceptions.AMQPError, OSError) as error:
                    self._report_lost(error)
                finally:
                    with suppress(exceptions.AMQPError, OSError):
                        connection.close()
        except QueueTrouble as error:
            self._trouble = str(error)
        except BaseException as error:
            self._trouble = f"{self._place}: reading it failed: {error!r}"
            raise

    def _receive_from(self, connection: BlockingConnection) -> None:
        while not self._ended:
            self._ask_for_more()
            received = self._received
            connection.process_data_events(time_limit=_TICK_S)
            idle = self._received == received and not self._ready.qsize()
            if idle:
                state = self._channel.queue_declare(self._place.queue, passive=True)
                idle = not state.method.message_count
            now = time.monotonic()
            self.empty = (self.empty[0] or now, now) if idle else (0.0, 0.0)

    def _ask_for_more(self) -> None:
        """Start a new consumer if the last one received its messages and they were taken."""
        if self._received < self._wanted or self._ready.qsize() > _AHEAD // 2:
            return
        if self._consumer is not None:
            self._channel.basic_cancel(self._consumer)
        self._wanted = self._received + _AHEAD
        self._channel.basic_qos(prefetch_count=_AHEAD)
        self._consumer = self._channel.basic_consume(self._place.queue, self._receive)

    def _receive(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._received += 1
        key = str(properties.message_id or self._received)
        headers = properties.headers or {}
        message = labelled(key, body, self._place.label, method.routing_key, headers)
        self._ready.put(_Given(self._connections, method.delivery_tag, message))

    def _deleted(self, frame: Any) -> None:
        raise QueueTrouble(f"{self._place}: the queue was deleted; declare it again, and resume")

    def _call(self, what: Callable[[], None]) -> None:
        """Call a function in the thread of the connection, if there is one."""
        from pika import exceptions

        # A connection may be lost at any time; the broker then redelivers its messages.
        with suppress(exceptions.AMQPError):
            if self._connection is not None and self._connection.is_open:
                self._connection.add_callback_threadsafe(what)

    def _report_lost(self, error: Exception) -> None:
        self.empty = 0.0, 0.0
        log.warning(
            "%s: the connection was lost (%s); messages that no checkpoint holds come again",
            self._place, _cause(error),
        )  # fmt: skip


def _parameters(url: str) -> URLParameters:
    try:
        import pika
    except ImportError as error:
        raise ValueError(
            "rabbitmq: the package pika is missing (the extra rabbitmq); run: pip install pika"
        ) from error
    try:
        if not url.startswith(("amqp://", "amqps://")):
            raise ValueError("it begins with another scheme")
        return pika.URLParameters(url)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"rabbitmq: {masked(url) if '://' in url else 'the URL'} is not the address of a "
            f"broker ({error}); expected amqp://user:password@host:5672/vhost, with @ : / in "
            f"them as %40 %3A %2F"
        ) from None


def _cause(error: Exception) -> str:
    """Return the message of the innermost error that pika reports, as one line."""
    inner: Any = error
    while getattr(inner, "args", None) and isinstance(inner.args[0], Exception):
        inner = inner.args[0]
    exception = getattr(inner, "exception", None)  # of a connection's attempt
    return " ".join(str(exception or inner or type(inner).__name__).split())[:300]
