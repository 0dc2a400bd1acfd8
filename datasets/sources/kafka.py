"""Stream the messages of a Kafka topic: partitions in ranges of their offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from sys import maxsize
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.files.passwords import from_environment
from penstock.datasets.files.reading_thread import still_wanted
from penstock.datasets.streams.messages import Message, MessageSource

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError

_LOOK_S = 10.0
_TICK_S = 0.2
_SECRET = re.compile(r"password|secret|\.pem$|jaas|oauthbearer\.config")
_OURS = {
    "enable.auto.commit": False,  # the loader keeps positions
    "auto.offset.reset": "earliest",  # of the messages that retention left
    "enable.partition.eof": True,
    "max.poll.interval.ms": 86_400_000,  # training may pause for a long time
    "log_level": 0,  # errors are raised
    "queued.max.messages.kbytes": 16_384,
}


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
        shard_messages: Offsets of a shard, without `epoch_messages`; the order of an epoch
            depends on it.
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
                remedy = f"type export KAFKA_SECRET=..., and {name}: env:KAFKA_SECRET"
                raise ValueError(f"dataset.source.options: {name} is a secret; {remedy}")
        self._epoch_messages, self._shard_messages = epoch_messages, shard_messages
        known = self._look_up() if offsets is None else offsets.get(topic, {})
        self._ranges = {n: (start or 0, stop) for n, (start, stop) in sorted(known.items())}
        counts = [
            maxsize if stop is None else stop - start for start, stop in self._ranges.values()
        ]
        if not counts or (epoch_messages is None and (max(counts) <= 0 or maxsize in counts)):
            raise ValueError(
                f"{self}: got the offsets {known}, expected messages between first offsets and "
                f"ends, such as {{0: [0, 1000]}}; produce some, give dataset.source.offsets, or "
                f"wait for messages: type dataset.source.epoch_messages=1000"
            )

    def __str__(self) -> str:
        return f"kafka {self.topic} at {self.servers}"

    def settled(self) -> dict[str, dict[str, dict[int, list[int | None]]]]:
        return {"offsets": {self.topic: {n: [*ends] for n, ends in self._ranges.items()}}}

    def shards(self, epoch: int) -> Sequence[OffsetRange]:
        """Return the first range of each partition, then the second ones, ..."""
        found: list[tuple[int, OffsetRange]] = []
        for partition, (start, stop) in self._ranges.items():
            end, step = maxsize if stop is None else stop, self._shard_messages
            if self._epoch_messages is not None:  # one shard: no message after it may exist yet
                step = self._epoch_messages
                start += epoch * step
                end = min(start + step, end)
            found += enumerate(
                OffsetRange(partition, n, min(n + step, end)) for n in range(start, end, step)
            )
        return [each for _, each in sorted(found)]

    def count(self, shard: OffsetRange) -> int:
        return shard.stop - shard.start

    def read(self, shard: OffsetRange, start: int) -> Generator[Message | BadRecord]:
        from confluent_kafka import TopicPartition

        at = shard.start + start
        errors: list[KafkaError] = []
        with closing(self._consumer(errors)) as consumer:
            consumer.assign([TopicPartition(self.topic, shard.partition, at)])
            while at < shard.stop:
                message = self._next(consumer, errors, shard, at)
                if message.offset() < at:
                    raise StreamError(
                        f"{self}: partition {shard.partition} ends before offset {at:,}: it is "
                        f"another topic of that name; start anew with trainer.resume=null"
                    )
                for gone in range(at, min(message.offset(), shard.stop)):
                    cause = "no such message: retention or compaction deleted it"
                    yield BadRecord(-1, f"{shard.partition}:{gone}", cause)
                if (at := message.offset()) >= shard.stop:
                    return
                key, value = f"{shard.partition}:{at}", message.value()
                if value is None:
                    yield BadRecord(-1, key, "an empty message, which deletes its key")
                else:
                    yield Message(key, value, message.key(), dict(message.headers() or ()))
                at += 1

    def fingerprint(self) -> str:
        return f"{self.topic} {self._ranges} {self._shard_messages} {self._epoch_messages}"

    def _next(
        self, consumer: Consumer, errors: list[KafkaError], shard: OffsetRange, at: int
    ) -> Any:
        """Wait for the next message, or for the end of a partition behind the shard."""
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            message = consumer.poll(_TICK_S)
            still_wanted()
            if message is None:
                continue
            if (error := message.error()) is None:
                errors.clear()
                return message
            if error.name() != "_PARTITION_EOF":
                errors.append(error)
            elif message.offset() >= shard.stop:
                return message
        if errors:
            raise StreamError(self._explained(errors))
        raise StreamError(
            f"{self}: partition {shard.partition} gave no message at offset {at:,} within "
            f"timeout_s={self.timeout_s:g} s; have more produced, lower "
            f"dataset.source.epoch_messages, or raise dataset.source.timeout_s"
        )

    def _consumer(self, errors: list[KafkaError]) -> Consumer:
        """Return a consumer that adds the library's errors to `errors`."""
        try:
            from confluent_kafka import Consumer, KafkaException
        except ImportError as error:
            what = "the package confluent-kafka is missing (the extra kafka)"
            raise ValueError(f"kafka: {what}; run: pip install confluent-kafka") from error
        options = {
            name: from_environment(str(value), setting=f"dataset.source.options: {name}")
            for name, value in self._options.items()
        }
        known = {"group.id": "penstock", **options, **_OURS, "bootstrap.servers": self.servers}
        try:
            return Consumer(known | {"error_cb": errors.append})
        except KafkaException as error:
            said = error.args[0].str()
            raise ValueError(f"{self}: {said}; correct dataset.source.options") from error

    def _look_up(self) -> dict[int, list[int | None]]:
        """Request the offsets of all partitions from the broker."""
        errors: list[KafkaError] = []
        with closing(self._consumer(errors)) as consumer:
            from confluent_kafka import KafkaException, TopicPartition

            try:
                found = consumer.list_topics(self.topic, timeout=_LOOK_S).topics[self.topic]
                if found.error is not None:
                    raise KafkaException(found.error)
                places = [TopicPartition(self.topic, n) for n in found.partitions]
                marks = [consumer.get_watermark_offsets(p, timeout=_LOOK_S) for p in places]
            except KafkaException as error:
                consumer.poll(0)  # calls `errors.append`
                raise ValueError(self._explained([error.args[0], *errors])) from None
        if None in marks:
            raise ValueError(self._explained(errors))
        waits = self._epoch_messages is not None
        ranges = zip(places, marks, strict=True)
        return {p.partition: [first, None if waits else stop] for p, (first, stop) in ranges}

    def _explained(self, errors: Sequence[KafkaError]) -> str:
        """Explain the last error of the library."""
        told = [error.str() for error in errors if error.name() != "_ALL_BROKERS_DOWN"]
        return (
            f"{self}: {told[-1] if told else 'no answer'}; check dataset.source.servers, topic and "
            f"options, that the broker runs, and that their user and group.id may read the topic"
        )
