"""The Prometheus logger: gauges, asked for as a Prometheus server asks."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from penstock import compose
from penstock.pipeline.training.job import train
from penstock.pipeline.training.loggers.prometheus import PrometheusLogger
from tests.contracts.logger import ROWS

pytest.importorskip("prometheus_client")


@pytest.fixture
def port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def begun(port):
    logger = PrometheusLogger(port=port)
    logger.begin()
    return logger


def gauges(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return dict(line.split(" ") for line in lines if not line.startswith("#"))


def test_the_newest_figures_are_gauges_until_it_is_closed(port):
    logger = begun(port)
    assert gauges(port) == {}
    for step, values in ROWS[:4]:
        logger.log(step, dict(values))
    assert gauges(port) == {
        "penstock_step": "9.0", "penstock_epoch": "1.0", "penstock_train_loss": "0.125",
        "penstock_time_data_wait": "0.125", "penstock_val_loss": "0.75",
        "penstock_lr": repr(2**-10), "penstock_val_top_5": "NaN",
    }  # fmt: skip
    logger.close()
    with pytest.raises(urllib.error.URLError):
        gauges(port)
    again = begun(port)  # the next job of a sweep
    again.load_state_dict(logger.state_dict())
    again.close()


def test_a_port_that_is_taken_is_a_line_whose_remedy_works(port):
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(ValueError) as told:
            begun(port)
    words = str(told.value).partition("; type logger.prometheus.port=")
    assert words[0] == f"logger prometheus: 127.0.0.1:{port} cannot be used: Address already in use"
    begun(int(words[2])).close()


def test_a_run_is_watched_while_it_trains(port, tmp_path, data_dir, monkeypatch):
    seen = []
    log = PrometheusLogger.log

    def asked(self, step, values):
        log(self, step, values)
        seen.append(gauges(port))

    monkeypatch.setattr(PrometheusLogger, "log", asked)
    train(compose([
        f"data_dir={data_dir}", f"outputs={tmp_path}", "logger=prometheus",
        f"logger.prometheus.port={port}", "loader=threads", "loader.num_workers=2",
        "loader.batch_size=16", "trainer.max_steps=2", "trainer.log_every=1",
        "trainer.limit_val_batches=1", "trainer.progress=off",
    ]))  # fmt: skip
    assert [each["penstock_step"] for each in seen][:2] == ["1.0", "2.0"]
    names = "samples_per_s data_wait worker_use ready restarts bad_samples decode_us"
    assert {f"penstock_time_{name}" for name in names.split()} < {*seen[0]}
    with pytest.raises(urllib.error.URLError):
        gauges(port)
