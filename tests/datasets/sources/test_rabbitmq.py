"""A queue as a stream: read from a server that runs here."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
from itertools import islice

import cv2
import numpy as np
import pytest

from penstock import compose
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.sources import rabbitmq
from penstock.datasets.sources.rabbitmq import RabbitSource
from penstock.pipeline.training.job import train
from tests.tcp_proxy import TcpProxy

pika = pytest.importorskip("pika")
URL = os.environ.get("TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/%2F")
PHOTO = cv2.imencode(".jpg", np.full((40, 40, 3), 90, np.uint8))[1].tobytes()
service = pytest.mark.service


class Server:
    """The broker, and a queue in it that is the test's own."""

    def __init__(self):
        try:
            self.connection = pika.BlockingConnection(pika.URLParameters(URL))
        except (OSError, pika.exceptions.AMQPError) as error:
            pytest.skip(f"no RabbitMQ at {URL}: {error!r}"[:100])
        self.channel = self.connection.channel()
        self.queue = f"penstock-{os.getpid()}"

    def put(self, count, value=None):
        for n in range(count):
            self.channel.basic_publish(
                "", self.queue, PHOTO + b"%d" % n if value is None else value(n),
                pika.BasicProperties(headers={"label": n % 3}),
            )  # fmt: skip

    def left(self):
        """Count the waiting messages, with the unacknowledged ones of ended connections."""
        return self.channel.queue_declare(self.queue, passive=True).method.message_count


@pytest.fixture
def server():
    server = Server()
    server.channel.queue_declare(server.queue)
    yield server
    server.channel.queue_delete(server.queue)
    server.connection.close()


@pytest.fixture
def proxy(server):
    parameters = pika.URLParameters(URL)
    proxy = TcpProxy((parameters.host, parameters.port))
    yield proxy
    proxy.close()


def through(proxy):
    parameters = pika.URLParameters(URL)
    who = f"{parameters.credentials.username}:{parameters.credentials.password}"
    return f"amqp://{who}@127.0.0.1:{proxy.port}/%2F"


def eventually(question, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not question() and time.monotonic() < deadline:
        time.sleep(0.02)
    return question()


@service
def test_messages_come_in_order_and_wait_for_a_checkpoint(server, monkeypatch):
    monkeypatch.setattr(rabbitmq, "_AHEAD", 10)
    server.put(100)
    source = RabbitSource(URL, queue=server.queue, label="label", count=60)
    again = pickle.loads(pickle.dumps(source))
    first = [again.load(item) for item in source.read(server.queue, 0)]
    assert [record.fields["image"] for record in first] == [PHOTO + b"%d" % n for n in range(60)]
    assert first[4].fields["label"] == 1
    source.acknowledge(50)
    reader = source.read(server.queue, 0)
    second = {item.value for item in islice(reader, 50)}
    assert second == {PHOTO + b"%d" % n for n in range(50, 100)}, "10 went into no batch"
    source.acknowledge(30)
    del source, reader
    gc.collect()
    assert eventually(lambda: server.left() == 100 - 50 - 30)


@service
def test_an_epoch_ends_when_nothing_comes(server):
    server.put(3)
    source = RabbitSource(URL, queue=server.queue, idle_s=60)
    reader = source.read(server.queue, 0)
    assert len(list(islice(reader, 3))) == 3
    source.idle_s = 0.3
    assert list(reader) == []
    reader = source.read(server.queue, 0)
    with pytest.raises(StreamError, match=r"no message within .*idle_s=0.3 s; have some publ"):
        next(reader)


@service
def test_after_a_lost_connection_unacknowledged_messages_come_again(server, proxy, caplog):
    server.put(30)
    source = RabbitSource(through(proxy), queue=server.queue, idle_s=60)
    reader = source.read(server.queue, 0)
    first = [item.value for item in islice(reader, 20)]
    source.acknowledge(8)
    source._link.is_empty()  # the broker answers in order
    proxy.cut()
    rest, wanted = [], [PHOTO + b"%d" % n for n in range(8, 30)]
    while rest[-len(wanted) :] != wanted:  # behind what was here when the connection was lost
        rest.append(next(reader).value)
    assert {*rest} == {*wanted}
    assert first == [PHOTO + b"%d" % n for n in range(20)]
    assert "connection lost" in caplog.text and "guest:guest" not in caplog.text
    source.acknowledge(20 + len(rest))
    del source, reader
    gc.collect()
    assert not eventually(server.left, timeout_s=0.5)


@service
def test_messages_that_no_checkpoint_holds_take_no_memory(server):
    server.put(3)
    reader = RabbitSource(URL, queue=server.queue).read(server.queue, 0)
    first = next(reader)
    assert next(reader).value and sys.getrefcount(first) == 2  # the name and the argument


@service
def test_a_loss_that_an_acknowledgement_notices(server, proxy, monkeypatch):
    monkeypatch.setattr(rabbitmq, "_AHEAD", 5)
    server.put(12)
    reader = (source := RabbitSource(through(proxy), queue=server.queue)).read(server.queue, 0)
    assert len(list(islice(reader, 5))) == 5
    proxy.cut()
    with pytest.raises((pika.exceptions.AMQPError, OSError)):
        source._link.is_empty()
    assert {item.value for item in islice(reader, 12)} == {PHOTO + b"%d" % n for n in range(12)}


@service
@pytest.mark.parametrize("deleted", [True, False])
def test_a_missing_broker_or_queue_is_one_clear_error(server, proxy, monkeypatch, deleted):
    monkeypatch.setattr(rabbitmq, "get_retry_s", lambda: 0.3)
    server.put(3)
    source = RabbitSource(through(proxy), queue=server.queue)
    reader = source.read(server.queue, 0)
    assert next(reader).value == PHOTO + b"0"
    if deleted:
        server.channel.queue_delete(server.queue)
    else:
        proxy.refuses = True
        proxy.cut()
    with pytest.raises(StreamError, match=r"check that the broker runs, dataset\.source\.queue"):
        list(islice(reader, 5))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        pytest.param("amqp://guest:secret7@{host}/%2F", "Login was refused", marks=service),
        pytest.param("amqp://guest:guest@{host}/none", "vhost none not found", marks=service),
        pytest.param("amqp://guest:guest@{host}/%2F", "no queue 'none'", marks=service),
        ("amqp://guest:secret7@127.0.0.1:1/%2F", "refused.*broker runs.*dataset.source.url"),
        ("amqp://guest:secret7@host:port", "invalid address; expected amqp"),
        ("env:NOT_THERE", "'NOT_THERE' is not set; type export"),
    ],
)
def test_mistakes_are_one_clear_error(url, said):
    host = URL.partition("@")[2].partition("/")[0]
    with pytest.raises((ValueError, StreamError), match=said) as caught:
        RabbitSource(url.replace("{host}", host), queue="none")
    assert "secret7" not in str(caught.value) and "\n" not in str(caught.value)


def typed(server, tmp_path, *more):
    chosen = """dataset=stream dataset/source=rabbitmq dataset.source.label=label
        dataset.source.classes=3 augment=light augment.image_size=32 loader.batch_size=8
        trainer.device=cpu trainer.progress=off"""
    return [*chosen.split(), f"dataset.source.url={URL}", f"dataset.source.queue={server.queue}",
            f"outputs={tmp_path}", *more]  # fmt: skip


@service
def test_a_run_acknowledges_the_messages_of_its_checkpoints(server, tmp_path):
    server.put(50)
    steps = ["trainer.max_epochs=1", "dataset.source.count=40"]
    config = compose(typed(server, tmp_path, *steps, "trainer.max_steps=3"))
    run = train(config)
    gc.collect()
    assert run["step"] == 3 and eventually(lambda: server.left() == 50 - 3 * 8)
    again = compose([f"trainer.resume={run['run_dir']}", "trainer.max_steps=5"])
    assert train(again)["step"] == 5
    gc.collect()
    assert eventually(lambda: server.left() == 50 - 5 * 8)
    server.put(60)
    unsaved = compose(typed(server, tmp_path, *steps, "trainer.max_steps=1", "trainer.save=false"))
    train(unsaved)
    gc.collect()
    assert eventually(lambda: server.left() == 10 + 60)
    assert not any("guest:guest" in f.read_text("latin-1") for f in tmp_path.rglob("*.*ml"))
