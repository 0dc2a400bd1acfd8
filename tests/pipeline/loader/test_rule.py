"""The rule that picks an engine where the settings name none."""

from __future__ import annotations

import numpy as np
import pytest

from penstock import build_loader, compose
from tests.pipeline.loader.fakes import FakeDataset, make_loader


class Drawing(FakeDataset):
    global_random = True


class Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def chosen(dataset, **settings):
    with make_loader(dataset, **{"engine": None, "num_workers": 2, **settings}) as loader:
        return loader.engine_choice


@pytest.mark.parametrize(
    ("dataset", "settings", "who"),
    [
        (FakeDataset(40), {"num_workers": 0}, "loader=inline"),
        (FakeDataset(40), {}, "loader=processes with 2 workers"),
        (Drawing(40), {}, "loader=processes with 2 workers"),
        (Locked(40), {}, "loader=threads with 2 workers"),
    ],
)
def test_samples_come_from_processes_where_these_can_start(dataset, settings, who):
    assert chosen(dataset, **settings).startswith(who)


def test_columns_come_from_threads(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((40, 8, 8, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.arange(40))
    data = ["dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0"]
    with build_loader(
        compose([*data, "augment=as_is", "loader.num_workers=2", "loader.batch_size=8"])
    ) as loader:
        assert loader.engine_choice.startswith(
            "loader=threads with 2 workers (each batch is made as"
        )
