"""What a sampler of torch is told, and what its stored orders follow."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Sampler

from penstock.pipeline.samplers.torch import TorchSampler
from tests.pipeline.loader.fakes import FakeIndex


class Shifted(Sampler):
    """Shifts the records by the epoch, as those for several ranks do."""

    def __init__(self, data_source):
        self.data_source, self.epoch = data_source, 0

    def __len__(self):
        return len(self.data_source)

    def __iter__(self):
        return iter((np.arange(len(self)) + self.epoch) % len(self))

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_it_is_told_the_epoch():
    sampler = TorchSampler(7, target=Shifted)
    assert [sampler.indices(epoch, 0, 2).tolist() for epoch in (0, 3)] == [[0, 1], [3, 4]]


class ByLabel(Sampler):
    def __init__(self, labels):
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __iter__(self):
        return iter(np.argsort(self.labels, kind="stable"))


@pytest.mark.parametrize("labels", [np.arange(9) % 3, np.arange(9) % 2])
def test_other_labels_are_another_order(labels):
    found = TorchSampler(9, FakeIndex(labels), target=ByLabel).indices(0, 0, 9)
    assert found.tolist() == np.argsort(labels, kind="stable").tolist()


OWN = """
class Own:
    def __len__(self):
        return 3

    def __iter__(self):
        return iter({order})
"""


def test_a_class_that_was_edited_gives_another_order(tmp_path, monkeypatch):
    for name, order in (("before", [0, 1, 2]), ("after", [2, 1, 0])):
        file = tmp_path / f"{name}.py"
        file.write_text(OWN.format(order=order))
        spec = importlib.util.spec_from_file_location("own_sampler", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "own_sampler", module)
        spec.loader.exec_module(module)
        assert TorchSampler(3, target=module.Own).indices(0, 0, 3).tolist() == order


class Halves(Sampler):
    """Cuts the epoch into batches of 1, 2, 3, ... records, and of 4, 5, ... in later epochs."""

    def __init__(self, data_source, first=1):
        self.data_source, self.first = data_source, first

    def __len__(self):
        return 5

    def __iter__(self):
        order, at, size = torch.randperm(len(self.data_source)).tolist(), 0, self.first
        while at < len(order):
            yield order[at : at + size]
            at, size = at + size, size + 1

    def set_epoch(self, epoch):
        self.first = self.first + 3 * epoch


def test_a_sampler_of_batches_cuts_them():
    sampler = TorchSampler(11, batch_size=6, target=Halves)
    assert np.diff(sampler.cuts(0)).tolist() == [1, 2, 3, 4, 1]
    assert np.diff(sampler.cuts(1)).tolist() == [4, 5, 2, 0, 0], (
        "no epoch has fewer, but empty ones"
    )
    for epoch in range(2):
        assert sorted(sampler.indices(epoch, 0, 11).tolist()) == list(range(11))


@pytest.mark.parametrize(
    ("size", "args", "epoch", "message"),
    [
        (3, {}, 0, "a batch of 4 records, and loader.batch_size is 3.* set loader.batch_size=4"),
        (64, {"data_source": range(40)}, 0, "has length 5 and yielded 9 batches in epoch 0"),
        (64, {"first": 0}, 0, None),
    ],
)
def test_batches_that_do_not_fit_are_said(size, args, epoch, message):
    sampler = TorchSampler(
        40, batch_size=size, target=Halves, args={"data_source": range(10), **args}
    )
    if message is None:
        assert np.diff(sampler.cuts(epoch)).tolist() == [1, 2, 3, 4, 0], "an empty list is no batch"
        return
    with pytest.raises(ValueError, match=message):
        sampler.cuts(epoch)


def test_torchs_own_sampler_of_batches_needs_no_arguments():
    sampler = TorchSampler(10, batch_size=4, target=BatchSampler, args={"drop_last": False})
    assert np.diff(sampler.cuts(2)).tolist() == [4, 4, 2]
    assert sorted(sampler.indices(2, 0, 10).tolist()) == list(range(10))


class Tensors(Sampler):
    def __init__(self, data_source):
        self.data_source = data_source

    def __len__(self):
        return len(self.data_source)

    def __iter__(self):
        return iter(torch.randperm(len(self)))


def test_indices_may_be_tensors():
    assert sorted(TorchSampler(10, target=Tensors).indices(0, 0, 10).tolist()) == list(range(10))


def test_positions_in_no_batch_hold_records_of_the_epoch():
    args = {"drop_last": True}
    sampler = TorchSampler(10, batch_size=4, target=BatchSampler, args=args)
    found = sampler.indices(1, 0, 10).tolist()
    assert len({*found[:8]}) == 8 and found[8:] == found[:2]


def test_a_sampler_of_no_batch_is_refused():
    args = {"drop_last": True}
    with pytest.raises(ValueError, match=r"has length 0 for 10 records; lower loader.batch_size"):
        TorchSampler(10, batch_size=11, target=BatchSampler, args=args)
