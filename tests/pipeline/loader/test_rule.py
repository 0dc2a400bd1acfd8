"""The rule that picks an engine where the settings name none."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.loader.settings import LoaderSettings
from tests.contracts.engine import check_engine
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader


class Drawing(FakeDataset):
    global_random = True


class Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def chosen(dataset, **settings):
    with make_loader(dataset, **{"engine": None, "num_workers": 2, **settings}) as loader:
        return loader.engine_choice


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batches_are_those_of_the_inline_engine(num_workers):
    check_engine(None, num_workers=num_workers)


@pytest.mark.parametrize(
    ("dataset", "settings", "who"),
    [
        (FakeDataset(40), {"num_workers": 0}, "the consumer's own thread"),
        (FakeDataset(40), {}, "2 worker processes"),
        (Drawing(40), {}, "2 worker processes"),
        (Locked(40), {}, "2 threads of this process"),
    ],
)
def test_samples_come_from_processes_where_these_can_start(dataset, settings, who):
    assert chosen(dataset, **settings).startswith(f"{who} (")


def test_columns_come_from_threads(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((40, 8, 8, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.arange(40))
    data = ["dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0"]
    with build_loader(
        compose([*data, "augment=as_is", "loader.num_workers=2", "loader.batch_size=8"])
    ) as loader:
        assert loader.engine_choice.startswith("2 threads of this process (each batch is made as")


def test_the_training_loader_logs_the_choice_once(caplog):
    with caplog.at_level(logging.INFO):
        settings = {"engine": None, "num_workers": 2}
        with make_loader(FakeDataset(40), **settings) as loader:
            digests(loader, 2)
            said = [line for line in caplog.messages if "computed by" in line]
            assert said == [f"loader: batches are computed by {loader.engine_choice}"]


def test_the_engine_that_is_gone_names_the_rule():
    with pytest.raises(ValueError, match="type loader=default"):
        LoaderSettings(engine="auto")
    with pytest.raises(ValueError, match="type loader=default"):
        compose(["loader=auto"])
