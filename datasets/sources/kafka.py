"""Messages of a Kafka topic as a stream: partitions in ranges of their offsets."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.contracts import SourceCapabilities
from penstock.core.registry import register
from penstock.core.sample import MAX_RECORD_BYTES, BadRecord, Record
from penstock.core.user_errors import ExplainedError
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.records.labels import StreamLabels
from penstock.datasets.streams.messages import JsonFields, Message, MessageFields

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

Ranges = dict[int, tuple[int, int | None]]
"""First offset and the one behind the last, by partition; None: there is no last."""
Offsets = dict[str, dict[int, list[int | None]]]
"""First offset and the one behind the last, by topic and partition; None: there is no last."""

_LOOK_S = 10.0
_TICK_S = 0.2
_SECRET = re.compile(r"password|secret|\.pem$|jaas|oauthbearer\.config")
_GONE = "no such message: compaction took it, or it ended a transaction"
_OURS = {
    "enable.auto.commit": False,  # positions are the loader's
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "max.poll.interval.ms": 86_400_000,  # training may do something else for long
    "log_level": 0,  # what is wrong is said in a line of ours
    "queued.max.messages.kbytes": 16_384,
    "receive.message.max.bytes": 1_000_000_000,
}


class KafkaTrouble(ExplainedError):
    """Trouble with the broker or the topic that did not pass; no damage of the data."""


class OffsetRange(NamedTuple):
    """A shard: messages of a partition, from `start` to before `stop`."""

    partition: int
    start: int
    stop: int


@register("source", "kafka")
class KafkaSource:
    """Messages of a Kafka topic: a shard is a partition's messages in a range of offsets.

    The offsets of a run are looked up once, at its beginning, and kept: every epoch, rank and
    resume reads the same messages. An offset is a position, also where retention or compaction
    has taken its message away: that is a bad record.

    Args:
        servers: Addresses of brokers, as ``host:9092,other:9092``.
        topic: The topic.
        value: The field that a message is, or ``json``: an object whose items are the fields.
        label: Where the label is: ``key``, or the name of a header; None: among the fields.
        classes: Class names by id, or how many there are; None: labels are ids.
        paths: Fields of objects that name files.
        base64: Fields of objects that hold bytes, in base64.
        root: The folder that paths are relative to and must not leave.
        epoch_messages: Messages that an epoch reads of each partition, the next ones in every
            epoch; it waits for them. None: every epoch reads all that were there at the run's
            beginning.
        offsets: First offset and the one behind the last, by topic and partition:
            ``{photos: {0: [0, 1000]}}``; None: all that is there.
        shard_messages: Offsets of a shard; part of what the order of an epoch is.
        timeout_s: Seconds that may pass without a message.
        options: Properties of librdkafka, such as ``security.protocol``. Passwords are
            ``env:NAME``, a variable of the environment.
    """

    reopens = True
    max_record_bytes: int = MAX_RECORD_BYTES

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
        self.servers, self.topic, self.label = servers, topic, label
        self.timeout_s = timeout_s
        self._options = dict(options)
        self._refuse_secrets()
        self._epoch_messages, self._shard_messages = epoch_messages, shard_messages
        labels = StreamLabels(classes)
        fields = JsonFields(paths=paths, base64=base64, root=root, labels=labels)
        self._fields = MessageFields(value, json=fields, labels=labels)
        self._class_names = labels.names
        if offsets is not None and topic not in offsets:
            raise ValueError(
                f"{self}: dataset.source.offsets has {', '.join(offsets)}, and not {topic}; add "
                f"those of this topic, or leave all of them away"
            )
        self._ranges = _checked(offsets[topic], str(self)) if offsets else self._look_up()
        if epoch_messages is None and any(stop is None for _, stop in self._ranges.values()):
            raise ValueError(
                f"{self}: offsets have no end; type dataset.source.epoch_messages=1000 to read so "
                f"many of each partition in an epoch"
            )

    def __str__(self) -> str:
        return f"kafka {self.topic} at {self.servers}"

    @property
    def capabilities(self) -> SourceCapabilities:
        """Declare the names of the classes."""
        return SourceCapabilities(class_names=self._class_names)

    @property
    def settled(self) -> dict[str, Offsets]:
        """The offsets, as they are given by the argument."""
        return {"offsets": {self.topic: {n: [*ends] for n, ends in self._ranges.items()}}}

    def shards(self, epoch: int) -> Sequence[OffsetRange]:
        """List ranges of offsets: the first one of each partition, then the second ones, ..."""
        found: list[tuple[int, OffsetRange]] = []
        for partition, (start, stop) in self._ranges.items():
            if self._epoch_messages is not None:
                start += epoch * self._epoch_messages
                end = start + self._epoch_messages
                stop = end if stop is None else min(end, stop)
            assert stop is not None
            step = self._shard_messages
            ranges = (
                OffsetRange(partition, n, min(n + step, stop)) for n in range(start, stop, step)
            )
            found += enumerate(ranges)
        return [each for _, each in sorted(found)]

    def open(self, shard: OffsetRange) -> OffsetReader:
        """Read a shard; nobody is asked for it before its first message is."""
        return OffsetReader(self, shard)

    def load(self, item: Message) -> Record | BadRecord:
        """Make the record of a message; one that is damaged or too large is a bad record."""
        return self._fields.record(item, max_bytes=self.max_record_bytes)

    def fingerprint(self) -> str:
        """Hash of topic and offsets, and of how many are a shard and an epoch."""
        what = [self.topic, self._ranges, self._shard_messages, self._epoch_messages]
        return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()

    def consumer(self, errors: list[KafkaError]) -> Consumer:
        """Make a consumer, which adds what goes wrong behind its back to `errors`.

        Raises:
            ValueError: The library or a variable of the environment is missing, or options are
                not the library's.
        """
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            raise ValueError(
                "kafka: the package confluent-kafka is missing (the extra kafka); run: pip install "
                "confluent-kafka"
            ) from error
        options = {name: _found(name, value) for name, value in self._options.items()}
        known = {"group.id": "penstock", **options, **_OURS, "bootstrap.servers": self.servers}
        try:
            return Consumer(known | {"error_cb": errors.append})
        except KafkaException as error:
            said = error.args[0].str()
            raise ValueError(f"{self}: {said}; correct dataset.source.options") from error

    def _look_up(self) -> Ranges:
        """Ask for the offsets of all partitions."""
        from_start = self._epoch_messages is not None
        errors: list[KafkaError] = []
        consumer = self.consumer(errors)
        try:
            from confluent_kafka import TopicPartition

            found = self._asked(consumer, errors, lambda: self._partitions(consumer))
            ranges: Ranges = {}
            for partition in found:
                place = TopicPartition(self.topic, partition)
                start, stop = self._asked(
                    consumer,
                    errors,
                    lambda place=place: consumer.get_watermark_offsets(place, timeout=1),
                )
                ranges[partition] = start, None if from_start else stop
        finally:
            consumer.close()
        if not from_start and not any(start != stop for start, stop in ranges.values()):
            raise ValueError(
                f"{self}: the topic has no messages; produce some, or wait for them: type "
                f"dataset.source.epoch_messages=1000"
            )
        return ranges

    def _partitions(self, consumer: Consumer) -> list[int]:
        from confluent_kafka import KafkaException

        found = consumer.list_topics(self.topic, timeout=1).topics[self.topic]
        if found.error is not None:
            raise KafkaException(found.error)
        return sorted(found.partitions)

    def _asked(self, consumer: Consumer, errors: list[KafkaError], ask: Any) -> Any:
        """Ask the broker, and again for some seconds where it does not answer."""
        from confluent_kafka import KafkaException

        deadline = time.monotonic() + _LOOK_S
        failed: KafkaError | None = None
        while True:
            try:
                answer = ask()
                if answer is not None:
                    return answer
            except KafkaException as error:
                failed = error.args[0]
            consumer.poll(0)  # has errors told
            refused = next(filter(is_refusal, [failed, *errors] if failed else errors), None)
            if refused is not None or time.monotonic() > deadline:
                raise ValueError(self.said(refused or failed, errors)) from None

    def said(self, error: KafkaError | None, errors: Sequence[KafkaError]) -> str:
        """Say in a line what is wrong, and what helps."""
        from confluent_kafka import KafkaError

        code = None if error is None else error.code()
        if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            return f"{self}: there is no such topic; correct dataset.source.topic"
        if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            return (
                f"{self}: {error.str() if error else ''}; have the user of dataset.source.options "
                f"allowed to read it (and its group.id)"
            )
        if error is not None and is_refusal(error):
            return f"{self}: {error.str()}; correct dataset.source.options"
        told = [e for e in (error, *errors) if e and e.code() != KafkaError._ALL_BROKERS_DOWN]
        cause = told[-1].str() if told else "no answer"
        return (
            f"{self}: cannot be reached: {cause}; check dataset.source.servers, and that the "
            f"broker runs"
        )

    def _refuse_secrets(self) -> None:
        for name, value in self._options.items():
            if _SECRET.search(name) and not str(value).startswith("env:"):
                raise ValueError(
                    f"dataset.source.options: {name} is a secret, and configs are written to "
                    f"files; type export KAFKA_SECRET=..., and {name}: env:KAFKA_SECRET"
                )


def is_refusal(error: KafkaError) -> bool:
    """Tell whether trying again is of no use."""
    from confluent_kafka import KafkaError

    return error.code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.TOPIC_EXCEPTION, KafkaError._AUTHENTICATION, KafkaError._SSL,
    )  # fmt: skip


class OffsetReader:
    """The messages of a range of offsets, one for each; satisfies `core.contracts.ShardReader`.

    Args:
        source: Where they are.
        shard: Which.

    Raises:
        KafkaTrouble: While reading: no message within the source's ``timeout_s``, the topic is
            gone or another one.
    """

    def __init__(self, source: KafkaSource, shard: OffsetRange) -> None:
        self._source = source
        self._partition, self._at, self._stop = shard
        self._errors: list[KafkaError] = []
        self._consumer: Consumer | None = None
        self._ahead: Any = None  # the next message that there is
        self._present = self._at  # offsets before have no message, and are passed over
        self._why = ""

    def __iter__(self) -> OffsetReader:
        return self

    def __next__(self) -> Message | BadRecord:
        if self._at >= self._stop:
            raise StopIteration
        if self._ahead is None and self._at >= self._present:
            self._fetch()
        key = f"{self._partition}:{self._at}"
        offset, self._at = self._at, self._at + 1
        if offset < self._present:
            return BadRecord(-1, key, self._why)
        message, self._ahead = self._ahead, None
        self._present = self._at
        value = message.value()
        if value is None:
            return BadRecord(-1, key, "the message has no value: it marks its key as deleted")
        name = self._source.label
        label = message.key() if name == "key" else None
        if name not in (None, "key"):
            label = dict(message.headers() or ()).get(name)
        if name is not None and label is None:
            what = "key" if name == "key" else f"header {name!r}"
            return BadRecord(-1, key, f"the message has no {what}, where the label should be")
        return Message(key, value, label.encode() if isinstance(label, str) else label)

    def skip(self, count: int) -> int:
        """Pass over so many offsets; nothing is read for it."""
        found = min(count, self._stop - self._at)
        self._at += found
        if self._ahead is not None and self._ahead.offset() < self._at:
            self._ahead = None
        return found

    def close(self) -> None:
        """Close the connections."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _fetch(self) -> None:
        """Have the next message, or find that there is none before the range's end."""
        from confluent_kafka import KafkaError, TopicPartition

        place = TopicPartition(self._source.topic, self._partition, self._at)
        if self._consumer is None:
            self._consumer = self._source.consumer(self._errors)
            self._consumer.assign([place])
        deadline = time.monotonic() + self._source.timeout_s
        while True:
            message = self._consumer.poll(_TICK_S)
            still_wanted()
            error = None if message is None else message.error()
            if error is None and message is not None:
                self._errors.clear()
                if message.offset() >= self._at:
                    self._ahead, self._present = message, min(message.offset(), self._stop)
                    self._why = _GONE
                    return
            elif error is not None and error.code() == KafkaError._PARTITION_EOF:
                if message.offset() >= self._stop:
                    self._present = self._stop
                    self._why = _GONE
                    return
            elif error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                if self._moved():
                    return
                self._consumer.assign([place])
            refused = next(
                filter(is_refusal, [error, *self._errors] if error else self._errors), None
            )
            if refused is not None:
                raise KafkaTrouble(self._source.said(refused, self._errors))
            if time.monotonic() > deadline:
                raise KafkaTrouble(self._late())

    def _moved(self) -> bool:
        """Pass over what retention has deleted; whether there is something."""
        from confluent_kafka import KafkaException, TopicPartition

        assert self._consumer is not None
        place = TopicPartition(self._source.topic, self._partition)
        try:
            found = self._consumer.get_watermark_offsets(place, timeout=1)
        except KafkaException:
            return False
        if found is None or found[0] <= self._at <= found[1]:
            return False
        first, last = found
        if self._at > last:
            raise KafkaTrouble(
                f"{self._source}: partition {self._partition} ends at offset {last:,}, before "
                f"{self._at:,}, where this run goes on: it is another topic of that name; start "
                f"anew with trainer.resume=null"
            )
        self._present = min(first, self._stop)
        self._why = f"the message was deleted by retention, as all before offset {first:,}"
        if first < self._stop:
            self._consumer.assign([TopicPartition(self._source.topic, self._partition, first)])
        return True

    def _late(self) -> str:
        source = self._source
        if self._errors:
            return source.said(None, self._errors)
        return (
            f"{source}: partition {self._partition} gave no message at offset {self._at:,} within "
            f"timeout_s={source.timeout_s:g} s; have more produced, lower "
            f"dataset.source.epoch_messages, or raise dataset.source.timeout_s"
        )


def _found(name: str, value: Any) -> Any:
    """Give an option's value, or that of the variable of the environment that it names."""
    if not isinstance(value, str) or not value.startswith("env:"):
        return value
    variable = value.removeprefix("env:")
    if variable not in os.environ:
        raise ValueError(
            f"dataset.source.options: {name}: the environment has no variable {variable!r}; type "
            f"export {variable}=..."
        )
    return os.environ[variable]


def _checked(ranges: Mapping[int, Any], where: str) -> Ranges:
    """Check offsets that are given."""
    for partition, ends in ranges.items():
        start, stop = ends if len(ends) == 2 else (-1, -1)
        if start is None or start < 0 or (stop is not None and stop < start):
            raise ValueError(
                f"{where}: dataset.source.offsets: partition {partition} has {[*ends]}, expected "
                f"the first offset and the one behind the last, such as [0, 1000]"
            )
    return {partition: (start, stop) for partition, (start, stop) in sorted(ranges.items())}
