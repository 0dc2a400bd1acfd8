"""Stream the messages of a Kafka topic: partitions in ranges of their offsets."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.passwords import from_environment
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.streams.messages import Message, MessageSource, labelled

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

Ranges = dict[int, tuple[int, int | None]]
"""First offset and end by partition; the end may be open."""

_LOOK_S = 10.0
_TICK_S = 0.2
_SECRET = re.compile(r"password|secret|\.pem$|jaas|oauthbearer\.config")
_GONE = "no such message: compaction took it, or it ended a transaction"
_REFUSALS = frozenset(
    "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC TOPIC_EXCEPTION TOPIC_AUTHORIZATION_FAILED "
    "GROUP_AUTHORIZATION_FAILED SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM "
    "_AUTHENTICATION _SSL".split()
)
_OURS = {
    "enable.auto.commit": False,  # the loader keeps positions
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "max.poll.interval.ms": 86_400_000,  # training may pause for a long time
    "log_level": 0,  # errors are raised
    "queued.max.messages.kbytes": 16_384,
    "receive.message.max.bytes": 1_000_000_000,
}


class KafkaTrouble(ExplainedError):
    """A persistent error of the broker or the topic, not damaged data."""


class OffsetRange(NamedTuple):
    """A shard: messages of a partition, from `start` to before `stop`."""

    partition: int
    start: int
    stop: int


@register("source", "kafka")
class KafkaSource(MessageSource):
    """Messages of a Kafka topic: a shard is a range of offsets of a partition.

    A run looks up its offsets once and keeps them, so every epoch, rank and resume reads the same
    messages. Each offset has a position: a message that retention or compaction has removed is a
    bad record.

    Args:
        servers: Addresses of brokers, as ``host:9092,other:9092``.
        topic: The topic.
        value: The field that a message holds, or ``json``: an object whose items are the fields.
        label: The place of the label: ``key``, or the name of a header; None: among the fields.
        classes: Class names by id, or their number; None: labels are ids.
        paths: Fields of objects that name files.
        base64: Fields of objects that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        epoch_messages: Messages that an epoch reads of each partition. Every epoch reads the next
            ones, and waits for them. None: every epoch reads all messages of the run's start.
        offsets: First offset and end by topic and partition: ``{photos: {0: [0, 1000]}}``; None:
            all messages of the topic.
        shard_messages: Offsets of a shard; the order of an epoch depends on it.
        timeout_s: Maximum seconds without a message.
        options: Properties of librdkafka, such as ``security.protocol``. Give passwords as
            ``env:NAME``, a variable of the environment.
    """

    def __init__(
        self,
        servers: str,
        *,
        topic: str,
        value: str = "image",
        label: str | None = None,
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        paths: list[str] = ["image"],  # noqa: B006 - never changed; a config option needs the list
        base64: list[str] = [],  # noqa: B006
        root: str = ".",
        epoch_messages: Annotated[int, Ge(1)] | None = None,
        offsets: dict[str, dict[int, list[int | None]]] | None = None,
        shard_messages: Annotated[int, Ge(1)] = 10_000,
        timeout_s: Annotated[float, Gt(0)] = 60,
        options: Mapping[str, str | int | float | bool] = {},
    ) -> None:
        super().__init__(
            value=value, label=label, classes=classes, paths=paths, base64=base64, root=root
        )
        self.servers, self.topic, self.timeout_s = servers, topic, timeout_s
        self._options = dict(options)
        for name, given in self._options.items():
            if _SECRET.search(name) and not str(given).startswith("env:"):
                raise ValueError(
                    f"dataset.source.options: {name} is a secret, and configs are written to "
                    f"files; type export KAFKA_SECRET=..., and {name}: env:KAFKA_SECRET"
                )
        self._epoch_messages, self._shard_messages = epoch_messages, shard_messages
        if offsets is not None and topic not in offsets:
            raise ValueError(
                f"{self}: dataset.source.offsets has {', '.join(offsets)}, and not {topic}; add "
                f"its offsets, or leave all of them out"
            )
        self._ranges = _checked(offsets[topic], str(self)) if offsets else self._look_up()
        if epoch_messages is None and any(stop is None for _, stop in self._ranges.values()):
            raise ValueError(
                f"{self}: offsets without an end; type dataset.source.epoch_messages=1000 to read "
                f"so many of each partition in an epoch"
            )

    def __str__(self) -> str:
        return f"kafka {self.topic} at {self.servers}"

    def settled(self) -> dict[str, dict[str, dict[int, list[int | None]]]]:
        """Return the offsets as the value of the argument `offsets`."""
        return {"offsets": {self.topic: {n: [*ends] for n, ends in self._ranges.items()}}}

    def shards(self, epoch: int) -> Sequence[OffsetRange]:
        """Return ranges of offsets: the first range of each partition, then the second ones, ..."""
        found: list[tuple[int, OffsetRange]] = []
        for partition, (start, stop) in self._ranges.items():
            if self._epoch_messages is not None:
                start += epoch * self._epoch_messages
                end = start + self._epoch_messages
                stop = end if stop is None else min(end, stop)
            assert stop is not None
            step = self._shard_messages
            found += enumerate(
                OffsetRange(partition, n, min(n + step, stop)) for n in range(start, stop, step)
            )
        return [each for _, each in sorted(found)]

    def count(self, shard: OffsetRange) -> int:
        """Count the offsets of a shard."""
        return shard.stop - shard.start

    def read(self, shard: OffsetRange, start: int) -> Generator[Message | BadRecord]:
        """Read the messages of a shard, one for each offset.

        Raises:
            KafkaTrouble: No message came within `timeout_s`, or the topic was deleted or recreated.
        """
        from confluent_kafka import TopicPartition

        at = shard.start + start
        errors: list[KafkaError] = []
        with closing(self._consumer(errors)) as consumer:
            consumer.assign([TopicPartition(self.topic, shard.partition, at)])
            while at < shard.stop:
                message, present, why = self._next(consumer, errors, shard, at)
                for gone in range(at, min(present, shard.stop)):
                    yield BadRecord(-1, f"{shard.partition}:{gone}", why)
                at = max(at, min(present, shard.stop))
                if message is None or at == shard.stop:
                    continue
                key, value = f"{shard.partition}:{at}", message.value()
                if value is None:
                    yield BadRecord(-1, key, "an empty message, which deletes its key")
                else:
                    headers = dict(message.headers() or ())
                    yield labelled(key, value, self._label, message.key(), headers)
                at += 1

    def fingerprint(self) -> str:
        """Hash the topic, the offsets, and the sizes of a shard and an epoch."""
        what = [self.topic, self._ranges, self._shard_messages, self._epoch_messages]
        return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()

    def _next(
        self, consumer: Consumer, errors: list[KafkaError], shard: OffsetRange, at: int
    ) -> tuple[Any, int, str]:
        """Wait for the next message from offset `at` on.

        Returns:
            The message or None, the first existing offset, and the reason for missing earlier ones.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            message = consumer.poll(_TICK_S)
            still_wanted()
            error = None if message is None else message.error()
            name = error.name() if error else ""
            if message is not None and not error and message.offset() >= at:
                errors.clear()
                return message, message.offset(), _GONE
            if name == "_PARTITION_EOF" and message.offset() >= shard.stop:
                return None, shard.stop, _GONE
            if name == "_AUTO_OFFSET_RESET":
                first = self._moved(consumer, shard.partition, at)
                if first > at:
                    return None, first, f"retention deleted all messages before offset {first:,}"
            self._refuse([error, *errors], KafkaTrouble)
            if time.monotonic() > deadline:
                raise KafkaTrouble(
                    self._unreachable(errors)
                    if errors
                    else f"{self}: partition {shard.partition} gave no message at offset {at:,} "
                    f"within timeout_s={self.timeout_s:g} s; have more produced, lower "
                    f"dataset.source.epoch_messages, or raise dataset.source.timeout_s"
                )

    def _moved(self, consumer: Consumer, partition: int, at: int) -> int:
        """Assign the partition's first existing offset from `at` on, and return it."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            marks = consumer.get_watermark_offsets(TopicPartition(self.topic, partition), timeout=1)
        except KafkaException:
            marks = None
        first, end = marks or (at, at)
        if at > end:
            raise KafkaTrouble(
                f"{self}: partition {partition} ends at offset {end:,}, before {at:,}, where this "
                f"run continues: it is another topic of that name; start anew with "
                f"trainer.resume=null"
            )
        first = max(first, at)
        consumer.assign([TopicPartition(self.topic, partition, first)])
        return first

    def _consumer(self, errors: list[KafkaError]) -> Consumer:
        """Return a consumer that adds the library's errors to `errors`."""
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise ValueError(
                "kafka: the package confluent-kafka is missing (the extra kafka); run: pip install "
                "confluent-kafka"
            ) from error
        options = {
            name: from_environment(value, setting=f"dataset.source.options: {name}")
            if isinstance(value, str)
            else value
            for name, value in self._options.items()
        }
        known = {"group.id": "penstock", **options, **_OURS, "bootstrap.servers": self.servers}
        try:
            return Consumer(known | {"error_cb": errors.append})
        except KafkaException as error:
            said = error.args[0].str()
            raise ValueError(f"{self}: {said}; correct dataset.source.options") from error

    def _look_up(self) -> Ranges:
        """Request the offsets of all partitions from the broker; retry for some seconds."""
        from_start = self._epoch_messages is not None
        errors: list[KafkaError] = []
        with closing(self._consumer(errors)) as consumer:
            from confluent_kafka import KafkaException

            deadline = time.monotonic() + _LOOK_S
            while True:
                try:
                    ranges = self._marks(consumer, from_start)
                    break
                except KafkaException as error:
                    failed = error.args[0]
                consumer.poll(0)  # calls `errors.append`
                self._refuse([failed, *errors], ValueError)
                if time.monotonic() > deadline:
                    raise ValueError(self._unreachable([failed, *errors])) from None
        if not from_start and not any(start != stop for start, stop in ranges.values()):
            raise ValueError(
                f"{self}: the topic is empty; produce some, or wait for them: type "
                f"dataset.source.epoch_messages=1000"
            )
        return ranges

    def _marks(self, consumer: Consumer, from_start: bool) -> Ranges:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        found = consumer.list_topics(self.topic, timeout=1).topics[self.topic]
        if found.error is not None:
            raise KafkaException(found.error)
        ranges: Ranges = {}
        for n in sorted(found.partitions):
            marks = consumer.get_watermark_offsets(TopicPartition(self.topic, n), timeout=1)
            if marks is None:
                raise KafkaException(KafkaError(KafkaError.REQUEST_TIMED_OUT))
            ranges[n] = marks[0], None if from_start else marks[1]
        return ranges

    def _refuse(
        self, errors: Sequence[KafkaError | None], raised: Callable[[str], Exception]
    ) -> None:
        """Raise if retries cannot help against one of the errors."""
        for error in errors:
            if error is not None and error.name() in _REFUSALS:
                raise raised(
                    f"{self}: {error.str()}; correct dataset.source.topic or "
                    f"dataset.source.options, or allow their user and group.id to read the topic"
                )

    def _unreachable(self, errors: Sequence[KafkaError]) -> str:
        told = [error.str() for error in errors if error.name() != "_ALL_BROKERS_DOWN"]
        return (
            f"{self}: cannot be reached: {told[-1] if told else 'no answer'}; check "
            f"dataset.source.servers, and that the broker runs"
        )


def _checked(ranges: Mapping[int, Any], where: str) -> Ranges:
    for partition, ends in ranges.items():
        start, stop = ends if len(ends) == 2 else (-1, -1)
        if start is None or start < 0 or (stop is not None and stop < start):
            raise ValueError(
                f"{where}: dataset.source.offsets: partition {partition} has {[*ends]}, expected "
                f"the first offset and the end, such as [0, 1000]"
            )
    return {partition: (start, stop) for partition, (start, stop) in sorted(ranges.items())}
