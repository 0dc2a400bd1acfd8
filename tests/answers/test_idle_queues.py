"""A queue's epoch ends because the queue is empty, not because its broker is away."""

from __future__ import annotations

import os
import threading
import uuid

import pytest

from penstock import build_loader, compose
from tests.tcp_proxy import TcpProxy

pika = pytest.importorskip("pika")
URL = os.environ.get("TEST_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/%2F")
pytestmark = pytest.mark.service


@pytest.fixture
def broker():
    """A channel to a broker, and a queue in it."""
    try:
        connection = pika.BlockingConnection(pika.URLParameters(URL))
    except (OSError, pika.exceptions.AMQPError) as error:
        pytest.skip(f"no RabbitMQ at {URL}: {error!r}"[:100])
    channel, name = connection.channel(), f"penstock-{uuid.uuid4().hex}"
    channel.queue_declare(name)
    yield channel, name
    channel.queue_delete(name)
    connection.close()


def publish(channel, name, numbers):
    for number in numbers:
        channel.basic_publish("", name, b'{"number": %d}' % number)


def config_of(url, name, *more):
    return compose(["dataset=stream", "dataset/source=rabbitmq", f"dataset.source.url={url}",
                    f"dataset.source.queue={name}", "dataset.source.value=json", "augment=as_is",
                    "dataset/decode=raw", "loader=inline", "loader.batch_size=1",
                    "dataset.source.idle_s=0.6", *more])  # fmt: skip


def test_idle_time_does_not_count_while_the_broker_is_away(broker):
    channel, name = broker
    parameters = pika.URLParameters(URL)
    proxy = TcpProxy((parameters.host, parameters.port))
    who = f"{parameters.credentials.username}:{parameters.credentials.password}"
    publish(channel, name, range(5))
    found = []
    try:
        with build_loader(config_of(f"amqp://{who}@127.0.0.1:{proxy.port}/%2F", name)) as loader:
            for batch in loader:
                found += [int(number) for number in batch["number"]]
                if len(found) == 1:
                    proxy.refuses = True
                    proxy.cut()
                    publish(channel, name, range(5, 12))
                    back = threading.Timer(2.5, setattr, (proxy, "refuses", False))
                    back.start()
            back.join()
    finally:
        proxy.close()
    assert {*found} == {*range(12)}


@pytest.mark.parametrize("more", [[], ["dataset.source.count=3"]])
def test_the_log_says_why_an_epoch_ended(broker, caplog, more):
    channel, name = broker
    publish(channel, name, range(3))
    caplog.set_level("INFO")
    with build_loader(config_of(URL, name, *more)) as loader:
        assert len([*loader]) == 3
    key = "dataset.source.count=3" if more else "dataset.source.idle_s=0.6"
    assert key in caplog.text
