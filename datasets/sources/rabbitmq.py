"""Messages of a RabbitMQ queue as a stream: each once, acknowledged when a checkpoint holds it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar

from annotated_types import Ge, Gt

from penstock.core.contracts import SourceCapabilities
from penstock.core.registry import register
from penstock.core.sample import MAX_RECORD_BYTES, BadRecord, Record
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.passwords import MASK, masked
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.records.labels import StreamLabels
from penstock.datasets.streams.messages import JsonFields, Message, MessageFields

if TYPE_CHECKING:
    from pika import BlockingConnection, URLParameters
    from pika.adapters.blocking_connection import BlockingChannel

T = TypeVar("T")

log = logging.getLogger(__name__)

_PATIENCE_S = 30.0
_PAUSE_S = 0.5
_TICK_S = 0.2
_END_S = 2.0
_TOLD_S = 60.0
_AHEAD = 200
"""Messages that are fetched at a time; as many again wait to be taken."""


class QueueTrouble(ExplainedError):
    """Trouble with the broker or the queue that did not pass; no damage of the data."""


class _Refused(Exception):
    """What the broker does not do, however often it is asked; the message is the cause."""


class _Given(NamedTuple):
    """A message, and where it was received: it is acknowledged there or nowhere."""

    connection: int
    tag: int
    message: Message | BadRecord


@dataclass(slots=True)
class _Answer:
    """An answer of the broker: the number of ready messages; None before it arrives."""

    messages: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A queue, as it is connected to.

    Attributes:
        url: The broker's, with the password.
        queue: The queue.
        label: Where labels are, see `RabbitSource`.
    """

    url: str
    queue: str
    label: str | None

    def __str__(self) -> str:
        parameters = _parameters(self.url)
        return f"rabbitmq {self.queue} at {parameters.host}:{parameters.port}"

    def connect(self) -> tuple[BlockingConnection, BlockingChannel]:
        """Connect to the broker, and look for the queue.

        Raises:
            _Refused: It does not let us in, or there is no such queue.
            OSError: It cannot be reached.
        """
        import pika
        from pika import exceptions

        logging.getLogger("pika").setLevel(logging.CRITICAL)  # what is wrong, a line of ours says
        try:
            connection = pika.BlockingConnection(_parameters(self.url))
            channel = connection.channel()
            channel.queue_declare(self.queue, passive=True)
        except (
            exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError,
            exceptions.AuthenticationError,
        ) as error:  # fmt: skip
            raise _Refused(
                f"{_said(error)}; check user, password and vhost in dataset.source.url"
            ) from None
        except exceptions.ChannelClosedByBroker as error:
            connection.close()
            raise _Refused(_of_queue(error)) from None
        except (exceptions.AMQPError, OSError) as error:
            raise OSError(
                f"cannot be reached: {_said(error)}; check dataset.source.url, and that the broker "
                f"runs"
            ) from None
        return connection, channel

    def message(
        self, number: int, method: Any, properties: Any, body: bytes
    ) -> Message | BadRecord:
        """Name a message, and find its label."""
        key = str(properties.message_id or number)
        label = method.routing_key if self.label == "key" else None
        if self.label not in (None, "key"):
            label = (properties.headers or {}).get(self.label)
            if label is None:
                what = f"the message has no header {self.label!r}, where the label should be"
                return BadRecord(-1, key, what)
        return Message(key, body, None if label is None else str(label).encode())


@register("source", "rabbitmq")
class RabbitSource:
    """Messages of a RabbitMQ queue, each of which one reader gets, at least once.

    They are acknowledged when a checkpoint holds what was trained on: what was not comes again,
    to this run where it goes on, or to another. What comes is not the same in another run, so
    nothing is exact but the count.

    Args:
        url: ``amqp://user@host:5672/vhost``, or ``env:NAME``, a variable that holds it.
        queue: The queue, which is there.
        value: The field that a message is, or ``json``: an object whose items are the fields.
        label: Where the label is: ``key`` (the routing key), or the name of a header; None: among
            the fields.
        classes: Class names by id, or how many there are; None: labels are ids.
        paths: Fields of objects that name files.
        base64: Fields of objects that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        count: Messages of an epoch; None: any number.
        idle_s: Seconds without a message after which an epoch ends; None: it waits. They count
            only while the broker answers and the queue is empty.
    """

    reopens = False
    max_record_bytes: int = MAX_RECORD_BYTES

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
        self.count, self.idle_s = count, idle_s
        self._place = Place(_found(url), queue, label)
        labels = StreamLabels(classes)
        fields = JsonFields(paths=paths, base64=base64, root=root, labels=labels)
        self._fields = MessageFields(value, json=fields, labels=labels)
        self._class_names = labels.names
        self._feed: _Feed | None = None
        self._reader: QueueReader | None = None
        self._name = str(self._place)
        try:
            _patiently(lambda: self._place.connect()[0].close())
        except (_Refused, OSError) as error:
            raise ValueError(f"{self}: {error}") from error

    def __str__(self) -> str:
        return self._name

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_feed": None, "_reader": None}

    @property
    def capabilities(self) -> SourceCapabilities:
        """Declare class names, that it goes on where it was read to, and who acknowledges."""
        return SourceCapabilities(class_names=self._class_names, goes_on=True, held=self.held)

    def shards(self, epoch: int) -> list[str]:
        """List the queue."""
        return [self._place.queue]

    def open(self, shard: str) -> QueueReader:
        """Go on with the queue."""
        if self._feed is None:
            self._feed = _Feed(self._place)
            self._feed.start()
            weakref.finalize(self, self._feed.end)
        before = self._reader.left if self._reader is not None else []
        self._reader = QueueReader(self, self._feed, before)
        return self._reader

    def load(self, item: Message) -> Record | BadRecord:
        """Make the record of a message; one that is damaged or too large is a bad record."""
        return self._fields.record(item, max_bytes=self.max_record_bytes)

    def fingerprint(self) -> str:
        """Hash of the queue's name, and of how many messages are an epoch."""
        text = json.dumps([self._place.queue, self.count])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def held(self, records: int) -> None:
        """Acknowledge the first so many messages of the epoch that is read: a checkpoint has them.

        Messages have to be taken in the order in which they were read.
        """
        if self._feed is not None and self._reader is not None:
            self._feed.acknowledge(self._reader.taken_before(records))


class QueueReader:
    """The messages of an epoch; satisfies `core.contracts.ShardReader`.

    Args:
        source: The queue, and when an epoch of it ends.
        feed: Gives them.
        before: Messages that were taken in the epoch before and went into no batch.
    """

    def __init__(self, source: RabbitSource, feed: _Feed, before: list[_Given]) -> None:
        self._source, self._feed = source, feed
        self._before = before
        self._was_told = False
        self._passed = 0
        self._taken: list[_Given] = []  # that no checkpoint holds
        self._held = 0

    def __iter__(self) -> QueueReader:
        return self

    def __next__(self) -> Message | BadRecord:
        position = self._passed + self._held + len(self._taken)
        if self._source.count is not None and position >= self._source.count:
            log.info("%s: the epoch ends: it has dataset.source.count=%d messages",
                     self._source, self._source.count)  # fmt: skip
            raise StopIteration
        given = None
        while self._before and given is None:
            given = self._feed.still_here(self._before.pop(0))
        given = given or self._wait(position)
        self._taken.append(given)
        return given.message

    def skip(self, count: int) -> int:
        """Count messages that were taken before, which do not come again."""
        self._passed += count
        return count

    def close(self) -> None:
        """Leave the connection open: what was taken is acknowledged later."""

    def taken_before(self, position: int) -> list[_Given]:
        """Give up to whoever acknowledges them the messages before a position of the epoch."""
        count = max(0, position - self._passed - self._held)
        taken, self._taken = self._taken[:count], self._taken[count:]
        self._held += len(taken)
        self._was_told = True
        return taken

    @property
    def left(self) -> list[_Given]:
        """What it gave and no checkpoint at the epoch's end holds; none where nobody keeps any."""
        return [*self._taken, *self._before] if self._was_told else []

    def _wait(self, position: int) -> _Given:
        """Wait for the next message, at a position of the epoch.

        The idle time counts only while the broker answers and its queue is empty.

        Raises:
            StopIteration: The queue was idle, and the epoch had messages.
            QueueTrouble: The queue was idle from the beginning, or the broker stays away.
        """
        begin = told = time.monotonic()
        idle_s = self._source.idle_s
        connection, asked = 0, None
        while True:
            given = self._feed.take()
            if given is not None:
                return given
            still_wanted()
            now = time.monotonic()
            if now - told > _TOLD_S:
                told = now
                log.info("%s: no message for %d s; waiting", self._source, now - begin)
            if idle_s is None:
                continue
            before, connection = connection, self._feed.connection
            if not connection or connection != before or (asked is not None and asked.messages):
                begin, asked = now, None
            elif asked is not None and asked.messages == 0:
                self._end_idle(position, idle_s)
            elif asked is None and now - begin > idle_s:
                asked = self._feed.ask()

    def _end_idle(self, position: int, idle_s: float) -> NoReturn:
        """End the epoch because the queue is empty."""
        if not position:
            raise QueueTrouble(
                f"{self._source}: gave no message within idle_s={idle_s:g} s; have some "
                f"published, or raise dataset.source.idle_s"
            )
        log.info(
            "%s: the epoch ends after %d messages: the queue is empty, and gave no message within "
            "dataset.source.idle_s=%g s", self._source, position, idle_s,
        )  # fmt: skip
        raise StopIteration


class _Feed(threading.Thread):
    """Receives messages and acknowledges them, and answers the broker while nobody takes any.

    A consumer gets so many messages; when most of them are taken another one takes its place: so
    what waits here is bounded, while any number of messages may wait to be acknowledged.

    Args:
        place: The queue.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(name="penstock-rabbitmq", daemon=True)
        self._place = place
        self._ready: queue.SimpleQueue[_Given] = queue.SimpleQueue()
        self._trouble: str | None = None
        self._ended = self._gone = False
        self._connection: BlockingConnection | None = None
        self._channel: Any = None
        self._consumer: str | None = None
        self._connections = self._received = self._wanted = 0

    def take(self) -> _Given | None:
        """Take the next message; None: there is none yet.

        Raises:
            QueueTrouble: None will come.
        """
        try:
            given = self._ready.get(timeout=0 if self._trouble else _TICK_S)
        except queue.Empty:
            if self._trouble is not None:
                raise QueueTrouble(f"{self._place}: {self._trouble}") from None
            return None
        if self._ready.qsize() == _AHEAD // 2:
            self._call(lambda: None)  # wakes it up, to ask for more
        return self.still_here(given)

    def still_here(self, given: _Given) -> _Given | None:
        """Give a message that came by the connection there is; others come again."""
        return given if given.connection == self._connections else None

    @property
    def connection(self) -> int:
        """The number of the connection, from 1; 0: the broker is away."""
        open_now = self._connection is not None and self._connection.is_open
        return self._connections if open_now else 0

    def ask(self) -> _Answer:
        """Ask the broker how many messages are ready in the queue; the answer comes later."""
        answer = _Answer()

        def send() -> None:
            found = self._channel.queue_declare(self._place.queue, passive=True)
            answer.messages = found.method.message_count

        self._call(send)
        return answer

    def acknowledge(self, taken: list[_Given]) -> None:
        """Have messages acknowledged that came by the connection there is."""

        def send() -> None:
            for given in taken:
                if given.connection == self._connections:
                    self._channel.basic_ack(given.tag)

        self._call(send)

    def end(self) -> None:
        """Close the connection: what was not acknowledged comes to somebody else."""
        self._ended = True
        self._call(lambda: None)
        self.join(_END_S)

    def run(self) -> None:
        """Receive, and connect again where a connection is lost."""
        from pika import exceptions

        try:
            while not self._ended:
                connection, channel = _patiently(self._place.connect)
                self._connections += 1
                self._connection, self._channel, self._consumer = connection, channel, None
                self._wanted = self._received
                channel.add_on_cancel_callback(self._deleted)
                try:
                    while not self._ended:
                        self._ask_for_more()
                        connection.process_data_events(time_limit=1)
                        if self._gone:
                            raise _Refused("the queue was deleted; declare it again, and resume")
                    return
                except exceptions.ChannelClosedByBroker as error:
                    if error.reply_code in (403, 404, 405):
                        raise _Refused(_of_queue(error)) from error
                    self._tell_lost(error)
                except (exceptions.AMQPError, OSError) as error:
                    self._tell_lost(error)
                finally:
                    with suppress(exceptions.AMQPError, OSError):
                        connection.close()
        except (_Refused, OSError) as error:
            self._trouble = str(error)
        except BaseException as error:
            self._trouble = f"reading it failed: {error!r}"
            raise

    def _ask_for_more(self) -> None:
        """Have a new consumer where the last one was given its messages, and they were taken."""
        if self._received < self._wanted or self._ready.qsize() > _AHEAD // 2:
            return
        if self._consumer is not None:
            self._channel.basic_cancel(self._consumer)
        self._wanted = self._received + _AHEAD
        self._channel.basic_qos(prefetch_count=_AHEAD)
        self._consumer = self._channel.basic_consume(self._place.queue, self._receive)

    def _deleted(self, frame: Any) -> None:
        self._gone = True

    def _receive(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._received += 1
        message = self._place.message(self._received, method, properties, body)
        self._ready.put(_Given(self._connections, method.delivery_tag, message))

    def _call(self, what: Callable[[], None]) -> None:
        """Have something done by the thread that the connection belongs to, if there is one."""
        from pika import exceptions

        connection = self._connection
        try:
            if connection is not None and connection.is_open:
                connection.add_callback_threadsafe(what)
        except exceptions.AMQPError:  # it has just been lost, and messages come again
            return

    def _tell_lost(self, error: Exception) -> None:
        log.warning(
            "%s: the connection was lost (%s); what no checkpoint holds comes again",
            self._place, _said(error),
        )  # fmt: skip


def _patiently(connect: Callable[[], T]) -> T:
    """Call, and again for some seconds where the broker cannot be reached."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return connect()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _found(url: str) -> str:
    """Give a URL, or that of the variable of the environment that it names."""
    name = url.removeprefix("env:")
    if name == url:
        return url
    if name not in os.environ:
        raise ValueError(
            f"rabbitmq: the environment has no variable {name!r}; type export {name}="
            f"amqp://user:password@host:5672/vhost"
        )
    return os.environ[name]


def _parameters(url: str) -> URLParameters:
    """Parse a URL.

    Raises:
        ValueError: It is none, its password was left out, or the library is missing.
    """
    try:
        import pika
    except ImportError as error:
        raise ValueError(
            "rabbitmq: the package pika is missing (the extra rabbitmq); run: pip install pika"
        ) from error
    if f":{MASK}@" in url:
        raise ValueError(
            f"rabbitmq: {url}: its password was left out where it was written ({MASK}); type it "
            f"again, or dataset.source.url=env:RABBITMQ_URL"
        )
    try:
        if not url.startswith(("amqp://", "amqps://")):
            raise ValueError("it begins with another scheme")
        return pika.URLParameters(url)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"rabbitmq: {masked(url) if '://' in url else 'the URL'} is no address of a broker "
            f"({error}); expected amqp://user:password@host:5672/vhost, with @ : / in them as %40 "
            f"%3A %2F"
        ) from None


def _of_queue(error: Any) -> str:
    """Say why the broker closed a channel."""
    if error.reply_code == 404:
        return f"there is no such queue ({error.reply_text}); correct dataset.source.queue"
    return f"{error.reply_text}; have the user of dataset.source.url allowed to read the queue"


def _said(error: Exception) -> str:
    """Give what pika says, in a line."""
    inner: Any = error
    while getattr(inner, "args", None) and isinstance(inner.args[0], Exception):
        inner = inner.args[0]
    exception = getattr(inner, "exception", None)  # of a connection's attempt
    return " ".join(str(exception or inner or type(inner).__name__).split())[:300]
