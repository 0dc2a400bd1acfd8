"""Loggers: what each writes, and that a service which fails stops no training."""

from __future__ import annotations

import csv
import json
import logging
import struct
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from penstock.core.contracts import Logger
from penstock.core.registry import register
from penstock.pipeline.training import job, remote_logger
from penstock.pipeline.training.loggers.csv import CsvLogger
from penstock.pipeline.training.loggers.mlflow import MlflowLogger
from penstock.pipeline.training.loggers.tensorboard import TensorBoardLogger
from penstock.pipeline.training.loggers.wandb import WandbLogger
from penstock.pipeline.training.remote_logger import RemoteLogger
from tests.contracts.logger import check_logger
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import rows, the_folder


def begin(logger):
    logger.begin()


def draw(logger):
    logger.picture(0, "first_batch", np.full((4, 6, 3), 7, np.uint8))


def fail(logger):
    logger.failed()


def figures_of_csv(folder: Path):
    found = {}
    for name in ("metrics.csv", "timings.csv"):
        with (folder / name).open() as file:
            for row in csv.DictReader(file):
                step = int(row.pop("step"))
                found |= {(key, step): float(value) for key, value in row.items() if value}
    return found


def test_csv(tmp_path):
    check_logger(lambda: CsvLogger(run_dir=tmp_path), lambda: figures_of_csv(tmp_path))


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read():
        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
        assert [(e.step, e.height, e.width) for e in events.Images("first_batch")] == [(0, 4, 6)]
        names = events.Tags()["scalars"]
        return {(name, e.step): e.value for name in names for e in events.Scalars(name)}

    check_logger(lambda: TensorBoardLogger(run_dir=tmp_path), read, draw=draw)


class Service(Logger):
    """Keeps what it is given while it is up; `up` is the event that says so."""

    remote = True

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.ended = ""
        self.up = threading.Event()
        self.asked = threading.Event()

    def log(self, step, values):
        self.asked.set()
        if not self.up.is_set():
            raise ConnectionError("http://me:secret@host refused\nthe connection")
        self.taken.append(step)

    def state_dict(self):
        return {"taken": len(self.taken)}

    def load_state_dict(self, state):
        pass

    def failed(self):
        self.ended = "failed and "

    def close(self):
        self.ended += "closed"


def test_what_a_service_refuses_is_told_once_and_given_again_in_order(monkeypatch, caplog):
    monkeypatch.setattr(remote_logger, "_FIRST_PAUSE_S", 0.01)
    service = Service()
    logger = RemoteLogger(service, "service")
    with caplog.at_level(logging.WARNING, "penstock"):
        for step in range(3):
            logger.log(step, {"loss": 1.0})
        assert service.asked.wait(10)
        assert logger.state_dict() == {"taken": 0}  # waits for no service that fails
        service.up.set()
        logger.log(3, {"loss": 1.0})
        logger.failed()
        logger.close()
    assert service.taken == [0, 1, 2, 3] and service.ended == "failed and closed"
    said = "logger service: ConnectionError: http://me:***@host refused the connection; training"
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(said)


def test_a_checkpoint_waits_for_a_service_that_works():
    service = Service()
    service.up.set()
    logger = RemoteLogger(service, "service")
    for step in range(50):
        logger.log(step, {})
    assert logger.state_dict() == {"taken": 50}
    logger.close()


def test_a_service_that_hangs_does_not_keep_a_run_from_its_end(caplog):
    hangs, service = threading.Event(), Service()
    service.log = lambda step, values: hangs.wait(20)
    logger = RemoteLogger(service, "service", patience_s=0.05)
    logger.log(0, {})
    with caplog.at_level(logging.WARNING, "penstock"):
        logger.close()
    hangs.set()
    assert "the service did not take the last 2 calls; metrics.csv has" in caplog.text


@register("logger", "test_service")
class Refusing(Service):
    """A service that is down."""

    def __init__(self, *, begins: bool = True) -> None:
        super().__init__()
        self._begins = begins

    def begin(self):
        if not self._begins:
            raise ValueError("no such project")


@pytest.mark.usefixtures("tiny_parts")
def test_training_goes_on_without_a_service_and_never_begins_without_its_run(
    tmp_path, monkeypatch, capsys
):
    def build(config, run_dir):
        begins = config["logger"]["test_service"]["begins"]
        return [CsvLogger(run_dir=run_dir), Refusing(begins=begins)]

    monkeypatch.setattr(job, "build_loggers", build)
    config = config_of(tmp_path / "a", {"max_epochs": 2})
    config["logger"]["test_service"] = {"_target_": "logger/test_service", "begins": True}
    assert job.train(config)["epoch"] == 2
    said = capsys.readouterr().out
    assert said.count("logger test_service: ConnectionError") == 1
    assert "did not take the last" in said and rows(the_folder(tmp_path / "a"))
    config["logger"]["test_service"]["begins"] = False
    with pytest.raises(ValueError, match="no such project"):
        job.train({**config, "outputs": str(tmp_path / "b")})
    assert not list((tmp_path / "b").glob("*"))


@pytest.mark.usefixtures("tiny_parts")
def test_a_run_goes_on_under_other_loggers(tmp_path, monkeypatch):
    made = {"csv": CsvLogger, "tensorboard": TensorBoardLogger}

    def build(config, run_dir):
        return [made[name](run_dir=run_dir) for name in config["logger"]]

    monkeypatch.setattr(job, "build_loggers", build)
    folders = []
    for epochs, names in enumerate([["csv"], ["csv", "tensorboard"], ["csv"]], 1):
        config = config_of(tmp_path, {"resume": "auto", "max_epochs": epochs})
        config["logger"] = {name: {"_target_": f"logger/{name}"} for name in names}
        folders.append(job.train(config)["run_dir"])
    assert folders == 3 * folders[:1]
    assert len(list(Path(folders[0]).rglob("events.out.tfevents.*"))) == 1
    assert rows(Path(folders[0]))[-1]["step"] == "18", "three epochs in one table"


class Album(CsvLogger):
    """Takes pictures too."""

    taken: dict[tuple[str, int], tuple[int, ...]] = {}  # noqa: RUF012

    draws = True

    def picture(self, step, name, picture):
        assert picture.dtype == np.uint8
        self.taken[name, step] = picture.shape


@pytest.mark.usefixtures("tiny_parts")
def test_the_first_batch_and_the_last_confusion_matrix_are_drawn(tmp_path, monkeypatch):
    plain = job.train(config_of(tmp_path / "plain", {"max_epochs": 2}))
    monkeypatch.setattr(job, "build_loggers", lambda config, run_dir: [Album(run_dir=run_dir)])
    config = config_of(tmp_path / "drawn", {"max_epochs": 2})
    result = job.train({**config, "task": {}, "augment": {}})
    assert {*Album.taken} == {("first_batch", 0), ("val/confusion", 12)}
    assert all(len(shape) == 3 and min(shape[:2]) > 100 for shape in Album.taken.values())
    metrics = [Path(run["run_dir"], "metrics.csv").read_bytes() for run in (plain, result)]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("module", "make", "said"),
    [
        ("wandb", WandbLogger, r"the package wandb is missing \(the extra wandb\); run: pip inst"),
        ("mlflow", MlflowLogger, r"the package mlflow is missing \(the extra mlflow\); run: pip i"),
    ],
)
def test_a_missing_package_is_one_line(tmp_path, monkeypatch, module, make, said):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=said):
        make(run_dir=tmp_path, config={})


CONFIG = {"run": {"name": "mine", "tags": ["a b"]}, "seed": 3, "model": {"size": [1, 2]}}


def records_of(log: bytes):
    """The records of a log in the form of LevelDB, behind a header of 7 bytes."""
    place, record = 7, b""
    while place < len(log):
        if 32768 - place % 32768 < 7:  # no room for a header: the block is filled up
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", log, place)
        record += log[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


@pytest.mark.ecosystem
class TestWandb:
    @pytest.fixture(autouse=True)
    def _alone(self, tmp_path, monkeypatch):
        self.wandb = pytest.importorskip("wandb")
        for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        yield
        self.wandb.teardown()

    def test_offline_runs_go_on_under_their_id(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WANDB_MODE", "offline")

        def logger():
            time.sleep(1.01)  # wandb names the folder by the second, and would write over it
            return WandbLogger(run_dir=tmp_path, config=CONFIG)

        check_logger(logger, lambda: self.figures(tmp_path), begin=begin, draw=draw, fail=fail)
        assert len([*tmp_path.glob("wandb/*/files/media/images/first_batch*.png")]) == 1
        folders = [each.name.rpartition("-")[2] for each in tmp_path.glob("wandb/offline-run-*")]
        assert len(folders) == 3 and len(set(folders)) == 2

    def figures(self, folder):
        from wandb.proto.wandb_internal_pb2 import Record

        found = {}
        for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
            for content in records_of(file.read_bytes()):
                record = Record()
                record.ParseFromString(content)
                row = {"/".join(i.nested_key) or i.key: i.value_json for i in record.history.item}
                row = {name: text for name, text in row.items() if "first_batch" not in name}
                step = int(row.pop("_step", "0"))
                found |= {(name, step): float(text.strip('"')) for name, text in row.items()}
                for each in record.run.config.update:
                    assert each.key not in CONFIG or json.loads(each.value_json) == CONFIG[each.key]
        return found

    def test_without_a_login_or_a_server_nothing_begins(self, tmp_path, monkeypatch):
        with pytest.raises(ValueError, match="nobody is logged in; type wandb login, or keep th"):
            WandbLogger(run_dir=tmp_path, config={})
        monkeypatch.setenv("WANDB_API_KEY", "short")
        self.wandb.teardown()
        with pytest.raises(ValueError, match=r"WANDB_API_KEY invalid: .*; check the server and"):
            WandbLogger(run_dir=tmp_path, config={})


@pytest.mark.ecosystem
class TestMlflow:
    @pytest.fixture(autouse=True)
    def _needs(self):
        self.mlflow = pytest.importorskip("mlflow")

    def test_a_run_goes_on_in_a_local_store(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        client = self.mlflow.MlflowClient(uri)

        def runs():
            number = client.get_experiment_by_name("penstock").experiment_id
            return client.search_runs([number], order_by=["attributes.start_time"])

        def read():
            run, found = runs()[0], {}
            for name in run.data.metrics:
                for each in client.get_metric_history(run.info.run_id, name):
                    before = found.get((name, each.step), each.value)
                    assert repr(before) == repr(each.value)  # of a row that was written again
                    found[name, each.step] = each.value
            found["train/loss", 12] = float("inf")  # the greatest number that the database holds
            return found

        check_logger(
            lambda: MlflowLogger(run_dir=tmp_path, config=CONFIG, tracking_uri=uri), read,
            begin=begin, draw=draw, fail=fail,
        )  # fmt: skip
        first, second = runs()
        assert (first.info.status, second.info.status) == ("FAILED", "FINISHED")
        assert first.data.params["model.size"] == "[1, 2]" and first.info.run_name == "mine"
        assert "a b" in first.data.tags
        files = client.list_artifacts(first.info.run_id)
        assert [each.path for each in files] == ["config.yaml", "images"]
        client.delete_run(first.info.run_id)
        lost = MlflowLogger(run_dir=tmp_path, config=CONFIG, tracking_uri=uri)
        lost.load_state_dict({"version": 1, "run": "0" * 32})  # of another store

    def test_a_server_that_does_not_answer_is_one_line(self, tmp_path):
        with pytest.raises(ValueError, match=r"127.0.0.1:9 cannot be used: .*; start it or corr"):
            MlflowLogger(run_dir=tmp_path, config={}, tracking_uri="http://127.0.0.1:9")
