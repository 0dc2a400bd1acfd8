"""A topic as a stream, read from librdkafka's own brokers."""

from __future__ import annotations

import base64
import json
import pickle
import struct

import cv2
import numpy as np
import pytest

from penstock import compose
from penstock.core.sample import BadRecord
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.sources import kafka
from penstock.datasets.sources.kafka import KafkaSource
from penstock.pipeline.build import settle
from penstock.pipeline.training.run_folder import SOURCE, settled
from tests.contracts.source import check_source, loaded
from tests.laws.runs import INLINE, digests, loader_of, rest, rows
from tests.laws.test_streams import WAYS
from tests.tcp_proxy import TcpProxy

confluent_kafka = pytest.importorskip("confluent_kafka")
PHOTO = cv2.imencode(".jpg", np.full((40, 40, 3), 90, np.uint8))[1].tobytes()


class Broker:
    """A broker of librdkafka's; topics have four partitions."""

    def __init__(self):
        self._producer = confluent_kafka.Producer(
            {"test.mock.num.brokers": 1, "log_level": 0, "batch.num.messages": 4}
        )
        [broker] = self._producer.list_topics(timeout=60).brokers.values()
        self.host, self.port = broker.host, broker.port
        self.servers = f"{self.host}:{self.port}"

    def put(self, topic, count, *, partitions=3, value=None, **message):
        """Produce messages in turn to some partitions; labels are in a header."""
        for n in range(count):
            self._producer.produce(
                topic,
                value=PHOTO + b"%d" % n if value is None else value(n),
                key=b"%d" % (n % 3),
                headers=[("label", b"%d" % (n % 3))],
                partition=n % partitions,
                **message,
            )
        assert self._producer.flush(60) == 0


@pytest.fixture(scope="module")
def broker():
    return Broker()


@pytest.fixture
def topic(request):
    return "".join(c for c in request.node.name if c.isalnum())


@pytest.fixture
def proxy(broker):
    """Return a proxy; it replaces the port of the broker in every answer."""
    own = struct.pack(">i", broker.port)
    proxy = TcpProxy(
        (broker.host, broker.port),
        rewritten=lambda some: some.replace(own, struct.pack(">i", proxy.port)),
    )
    yield proxy
    proxy.close()


def items(source, epoch=0):
    return [record for shard in source.shards(epoch)
            for record in loaded(pickle.loads(pickle.dumps(source)), shard)]  # fmt: skip


def test_offsets_are_records_in_ranges_of_partitions(broker, topic):
    broker.put(topic, 50)
    source = KafkaSource(broker.servers, topic=topic, label="label", shard_messages=10)
    assert [tuple(s) for s in source.shards(0)] == [
        (0, 0, 10), (1, 0, 10), (2, 0, 10), (0, 10, 17), (1, 10, 17), (2, 10, 16)
    ]  # fmt: skip
    assert source.shards(1) == source.shards(0)
    found = items(source)
    assert [r.key for r in found[:3]] == ["0:0", "0:1", "0:2"] and len({r.key for r in found}) == 50
    assert found[1].fields == {"image": PHOTO + b"3", "label": 0}
    check_source(
        lambda: KafkaSource(broker.servers, topic=topic, shard_messages=10),
        [record.key for record in found],
    )


def test_an_epoch_is_the_next_messages_and_waits_for_them(broker, topic, monkeypatch):
    monkeypatch.setattr(kafka, "_TICK_S", 0.01)
    broker.put(topic, 8, partitions=4)
    source = KafkaSource(broker.servers, topic=topic, epoch_messages=2)
    broker.put(topic, 8, partitions=4)
    first, second = items(source, 0), items(source, 1)
    assert [r.key for r in first[:2]] == ["0:0", "0:1"]
    assert [r.key for r in second[:2]] == ["0:2", "0:3"]
    reader = source.read(source.shards(2)[0], 0)
    source.timeout_s = 0.3
    with pytest.raises(StreamError, match=r"no message at offset 4 within .*have more"):
        next(reader)
    broker.put(topic, 4, partitions=4)
    source.timeout_s = 60
    assert next(source.read(source.shards(2)[0], 0)).key == "0:4"


def test_json(broker, topic):
    values = [{"photo": base64.b64encode(b"png").decode(), "key": "x", "label": 1}, [1]]
    encoded = [*(json.dumps(each).encode() for each in values), None]
    broker.put(topic, len(encoded), partitions=1, value=encoded.__getitem__)
    first, *bad = items(KafkaSource(broker.servers, topic=topic, value="json", base64=["photo"]))
    assert (first.key, first.fields) == ("x", {"photo": b"png", "label": 1})
    assert [type(each) for each in bad] == [BadRecord, BadRecord] and bad[0].key == "0:1"
    assert "expected an object" in bad[0].cause and "empty message" in bad[1].cause


def test_bad_messages_spoil_no_other(broker, topic):
    broker.put(topic, 4, partitions=1, value=lambda n: b"x" * (100 if n == 2 else 10))
    source = KafkaSource(broker.servers, topic=topic, label="label", classes=2)
    source.max_record_bytes = 50
    *good, large, last = items(source)
    assert [record.fields["label"] for record in (*good, last)] == [0, 1, 0]
    assert isinstance(large, BadRecord) and "dataset.max_record_bytes=100" in large.cause
    assert items(KafkaSource(broker.servers, topic=topic, label="key"))[2].fields["label"] == 2
    other = KafkaSource(broker.servers, topic=topic, label="lable")
    assert "lacks 'lable'" in items(other)[0].cause


def test_deleted_messages_are_bad_records_at_their_positions(broker, topic):
    # Of a partition these brokers keep the newest 5 MB.
    broker.put(topic, 40, partitions=1, value=lambda n: bytes(200_000))
    given = {topic: {0: [0, 40]}}
    source = KafkaSource(broker.servers, topic=topic, offsets=given, shard_messages=20)
    found = items(source)
    gone = [r for r in found if isinstance(r, BadRecord)]
    assert [r.key for r in found] == [f"0:{n}" for n in range(40)]
    assert 0 < len(gone) < 40 and found[: len(gone)] == gone and "retention" in gone[0].cause


def test_another_topic_of_the_name(broker, topic):
    broker.put(topic, 3, partitions=1)
    source = KafkaSource(broker.servers, topic=topic, offsets={topic: {0: [50, 90]}})
    with pytest.raises(StreamError, match=r"ends before offset 50.*resume=null"):
        items(source)


def test_connections_that_break_change_nothing(broker, topic, proxy):
    broker.put(topic, 24, value=lambda n: b"%d" % n + bytes(30_000))
    expected = items(KafkaSource(broker.servers, topic=topic))
    proxy.cut_after, proxy.delay_s = 200_000, 0.001
    few = {"fetch.message.max.bytes": 100_000, "reconnect.backoff.ms": 10}
    few |= {"reconnect.backoff.max.ms": 20, "fetch.error.backoff.ms": 10}
    assert items(KafkaSource(f"127.0.0.1:{proxy.port}", topic=topic, options=few)) == expected
    assert proxy.cuts and proxy.passed > 500_000


def test_a_broker_that_goes_away_is_one_clear_error(broker, topic, proxy, monkeypatch):
    broker.put(topic, 6, partitions=1, value=lambda n: bytes(400_000))
    source = KafkaSource(f"127.0.0.1:{proxy.port}", topic=topic)
    reader = source.read(source.shards(0)[0], 0)
    next(reader)
    source.timeout_s = 5  # in which the library tells that its connection is refused
    proxy.refuses = True
    proxy.cut()
    with pytest.raises(StreamError, match=r"check dataset\.source\.servers"):
        list(reader)
    reader.close()
    monkeypatch.setattr(kafka, "_LOOK_S", 0.2)
    with pytest.raises(ValueError, match=r"refused.*the broker runs"):
        KafkaSource("127.0.0.1:1", topic=topic)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "none"}, "nknown topic.*dataset.source.servers, topic"),
        ({"options": {"sasl.mechanim": "PLAIN"}}, 'No such .*"sasl.mechanim".*source.options'),
        ({"options": {"sasl.password": "hidden"}}, "sasl.password is a secret.*env:KAFKA_SECRET"),
        ({"options": {"sasl.password": "env:NOT_THERE"}}, "'NOT_THERE' is not set; type export"),
        (
            {"offsets": {"other": {0: [0, 5]}}},
            r"expected messages between first offsets.* \{0: \[0, 1000\]",
        ),
        ({"offsets": {"here": {0: [9, None]}}}, "dataset.source.epoch_messages=1000"),
    ],
)
def test_mistakes_are_one_clear_error(broker, topic, arguments, said):
    broker.put("here", 1)
    with pytest.raises(ValueError, match=said) as caught:
        KafkaSource(broker.servers, **{"topic": "here", **arguments})
    assert "\n" not in str(caught.value) and "hidden" not in str(caught.value)


@pytest.fixture(scope="module")
def config(broker):
    """Return a config without settled offsets."""
    broker.put("photos", 61)
    broker.put("photos-val", 9)
    typed = """dataset=stream dataset/source=kafka dataset.val_path=photos-val
        dataset.source.topic=photos dataset.source.label=label dataset.source.shard_messages=7
        dataset.shuffle_window=5 dataset.lanes=3 dataset.source.classes=3 augment=light
        augment.image_size=32 loader.batch_size=8 loader.drop_last=false"""
    return compose([*typed.split(), f"dataset.source.servers={broker.servers}"])


@pytest.fixture(scope="module")
def expected(broker, config):
    """Return a config with settled offsets, and the hashes of two epochs."""
    given = settle(config)
    broker.put("photos", 5)
    return given, digests(given, **INLINE)


@pytest.mark.parametrize("way", WAYS[:2])
def test_the_same_batches_however_it_is_run_and_after_a_resume(expected, way):
    config, hashes = expected
    assert digests(config, **way) == hashes
    assert len(hashes[0]) == 8 and hashes[0] != hashes[1]
    with loader_of(config, **INLINE) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    with loader_of(config, **way) as loader:
        loader.load_state_dict(state)
        assert rest(loader) == hashes[0][2:]


def test_ranks_share_what_one_of_them_found(broker, config):
    with pytest.raises(ValueError, match=r"each of 2 ranks .*settle\(config\)"):
        loader_of(config, rank=1, world_size=2, **INLINE)
    given = settle(config)
    alone = rows(given, **INLINE)
    shared = [rows(given, rank=rank, world_size=2, **INLINE) for rank in range(2)]
    assert [first + second for first, second in zip(*shared, strict=True)] == alone
    assert {*given["dataset"]["source"]["offsets"]} == {"photos", "photos-val"}


def test_a_resumed_run_reads_its_own_offsets(broker, config, tmp_path):
    began = settled(config, tmp_path)
    broker.put("photos", 7)
    again = settled(config, tmp_path)
    assert again == began != settle(config)
    (tmp_path / SOURCE).write_text("[")
    with pytest.raises(ValueError, match="damaged; start anew"):
        settled(config, tmp_path)
