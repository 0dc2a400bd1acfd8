"""A queue as a stream: read from a server that runs here."""

from __future__ import annotations

import gc
import os
import pickle
import threading
import time
from itertools import islice

import cv2
import numpy as np
import pytest

from penstock import compose
from penstock.datasets.files import reading_thread
from penstock.datasets.files.reading_thread import read_ahead
from penstock.datasets.sources import rabbitmq
from penstock.datasets.sources.rabbitmq import QueueTrouble, RabbitSource
from penstock.pipeline.build import build_loader
from penstock.pipeline.config.errors import ConfigError
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
        """Count the messages that wait, those of connections that have ended among them."""
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
    first = list(source.read(server.queue, 0))
    assert [again.load(item).fields["image"] for item in first] == [
        PHOTO + b"%d" % n for n in range(60)
    ]
    assert again.load(first[4]).fields["label"] == 1
    source.acknowledge(50)
    second = list(islice(source.read(server.queue, 0), 40))  # first those that went into no batch
    assert [item.value for item in second] == [PHOTO + b"%d" % n for n in range(50, 90)]
    source.acknowledge(30)
    del source
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
    with pytest.raises(QueueTrouble, match=r"no message within idle_s=0.3 s; have some published"):
        next(reader)
    source.idle_s = 60
    server.put(1)
    reader = source.read(server.queue, 0)
    assert next(reader).value == PHOTO + b"0"


def settled(source):
    """Wait until the broker has all that it was told: it answers a channel in order."""
    answered = threading.Event()

    def ask():
        source._feed._channel.queue_declare(source._place.queue, passive=True)
        answered.set()

    source._feed._call(ask)
    assert answered.wait(60)


@service
def test_a_connection_that_is_lost_gives_again_what_no_checkpoint_holds(server, proxy, caplog):
    server.put(30)
    source = RabbitSource(through(proxy), queue=server.queue, idle_s=60)
    reader = source.read(server.queue, 0)
    first = [item.value for item in islice(reader, 20)]
    source.acknowledge(8)
    settled(source)
    proxy.cut()
    rest, wanted = [], [PHOTO + b"%d" % n for n in range(8, 30)]
    while rest[-len(wanted) :] != wanted:  # behind what was here when the connection was lost
        rest.append(next(reader).value)
    assert {*rest} == {*wanted}
    assert first == [PHOTO + b"%d" % n for n in range(20)]
    assert "the connection was lost" in caplog.text and "guest" not in caplog.text
    source.acknowledge(20 + len(rest))
    del source, reader
    gc.collect()
    assert not eventually(server.left, timeout_s=0.5)


@service
def test_a_broker_that_stays_away_is_a_line(server, proxy, monkeypatch):
    monkeypatch.setattr(rabbitmq, "get_retry_s", lambda: 0.3)
    monkeypatch.setattr(rabbitmq, "_PAUSE_S", 0.05)
    server.put(3)
    source = RabbitSource(through(proxy), queue=server.queue)
    reader = source.read(server.queue, 0)
    assert next(reader).value == PHOTO + b"0"
    proxy.refuses = True
    proxy.cut()
    with pytest.raises(QueueTrouble, match=r"cannot be reached: .*dataset.source.url, and that"):
        list(islice(reader, 5))


@service
def test_a_queue_that_is_deleted_is_a_line(server):
    server.put(1)
    source = RabbitSource(URL, queue=server.queue)
    reader = source.read(server.queue, 0)
    next(reader)
    server.channel.queue_delete(server.queue)
    with pytest.raises(QueueTrouble, match=r"the queue was deleted; declare it again"):
        next(reader)


@service
def test_closing_a_stream_that_waits_is_quick(server, monkeypatch):
    monkeypatch.setattr(reading_thread, "_JOIN_S", 60)
    server.put(2)
    source = RabbitSource(URL, queue=server.queue)
    others = {*threading.enumerate()}
    waiting = read_ahead(lambda: (yield from source.read(server.queue, 0)))
    assert len(list(islice(waiting, 2))) == 2
    [reads] = [t for t in {*threading.enumerate()} - others if t.name == "penstock-stream"]
    waiting.close()
    assert not reads.is_alive()


@service
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://guest:secret7@{host}/%2F", "Login was refused.*dataset.source.url"),
        ("amqp://guest:guest@{host}/none", "vhost none not found.*dataset.source.url"),
        ("amqp://guest:guest@{host}/%2F", "no queue 'none'.*dataset.source.queue"),
    ],
)
def test_what_the_server_refuses_is_a_line(server, url, said):
    parameters = pika.URLParameters(URL)
    with pytest.raises(ValueError, match=said) as caught:
        RabbitSource(url.format(host=f"{parameters.host}:{parameters.port}"), queue="none")
    assert "secret7" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("amqp://guest:secret7@127.0.0.1:1/%2F", "cannot be reached: .*refused.*broker runs"),
        ("http://guest:secret7@host", "another scheme.*expected amqp://user"),
        ("amqp://guest:secret7@host:port", "not the address of a broker"),
        ("env:NOT_THERE", "'NOT_THERE' is not set; type export"),
    ],
)
def test_mistakes_are_a_line(url, said, monkeypatch):
    monkeypatch.setattr(rabbitmq, "get_retry_s", lambda: 0.1)
    monkeypatch.setattr(rabbitmq, "_PAUSE_S", 0.05)
    with pytest.raises(ValueError, match=said) as caught:
        RabbitSource(url, queue="none")
    assert "secret7" not in str(caught.value) and "\n" not in str(caught.value)


def typed(server, tmp_path, *more):
    chosen = ["dataset=stream", "dataset/source=rabbitmq"]
    chosen += [f"dataset.source.url={URL}", f"dataset.source.queue={server.queue}"]
    chosen += ["dataset.source.label=label", "dataset.source.classes=3", f"outputs={tmp_path}"]
    return [*chosen, "augment=light", "augment.image_size=32", "loader.batch_size=8",
            "trainer.device=cpu", "trainer.progress=off", *more]  # fmt: skip


@service
def test_a_run_acknowledges_what_its_checkpoints_hold_and_goes_on(server, tmp_path):
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


@service
def test_what_demands_exactness_is_refused(server, tmp_path):
    server.put(8)
    with pytest.raises(ConfigError, match=r"(?s)lanes=1.*window: 9 given.*window=0"):
        compose([*typed(server, tmp_path), "dataset.shuffle_window=9", "dataset.lanes=2"])
    with pytest.raises(ConfigError, match=r"dataset\.val_path: 'other'"):
        compose(typed(server, tmp_path, "dataset.val_path=other"))
    with pytest.raises(ValueError, match=r"dataset: .*2 ranks"):
        build_loader(compose(typed(server, tmp_path)), "train", rank=0, world_size=2)
