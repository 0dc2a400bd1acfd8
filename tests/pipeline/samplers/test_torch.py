"""Samplers of torch and of users: their arguments, seeds, batches, and what is refused."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, Sampler, SubsetRandomSampler

from penstock.pipeline.samplers.torch import TorchSampler
from tests.contracts.sampler import check_sampler


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


class Drawing(Sampler):
    """Draws from global state."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __len__(self):
        return len(self.data_source)

    def __iter__(self):
        return iter(torch.from_numpy(np.argsort(np.random.rand(len(self)))))


class Growing(Sampler):
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


def test_it_is_told_the_epoch():
    sampler = TorchSampler(7, target=Shifted)
    assert [sampler.indices(epoch, 0, 2).tolist() for epoch in (0, 3)] == [[0, 1], [3, 4]]


def test_it_is_reproducible_with_global_draws():
    check_sampler(TorchSampler(9, target=Drawing), n=9, shuffles=True, exactly_once=True)


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


def test_a_sampler_of_batches_cuts_them():
    sampler = TorchSampler(11, batch_size=6, target=Growing)
    assert np.diff(sampler.cuts(0)).tolist() == [1, 2, 3, 4, 1]
    assert np.diff(sampler.cuts(1)).tolist() == [4, 5, 2, 0, 0], "every epoch has as many"
    for epoch in range(2):
        assert sorted(sampler.indices(epoch, 0, 11).tolist()) == list(range(11))
    sampler = TorchSampler(11, batch_size=6, target=Growing, args={"first": 0})
    assert np.diff(sampler.cuts(0)).tolist() == [1, 2, 3, 4, 1], "an empty list is no batch"
    with pytest.raises(ValueError, match="yielded 6 batches of 16 records in epoch 0"):
        TorchSampler(16, batch_size=6, target=Growing).cuts(0)


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [4, 4, 2]), (True, [4, 4])])
def test_torchs_own_sampler_of_batches_needs_no_arguments(drop_last, sizes):
    args = {"drop_last": drop_last}
    sampler = TorchSampler(10, batch_size=4, target=BatchSampler, args=args)
    assert np.diff(sampler.cuts(2)).tolist() == sizes
    found = sampler.indices(2, 0, 10).tolist()
    assert len({*found[:8]}) == 8 and {*found[8:]} <= {*range(10)}


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        (DistributedSampler, {}, "splits the data over ranks"),
        (SubsetRandomSampler, {"indices": [5, 300]}, "yielded indices 5 to 300; the data has 40"),
        (torch.utils.data.RandomSampler, {"replcement": True}, r"takes \(.*'replcement'"),
        (BatchSampler, {"drop_last": True, "batch_size": 41}, "has length 0 for 40 records; lower"),
        (Growing, {"data_source": range(10)}, "a batch of 4 records; set loader.batch_size=4"),
    ],
)
def test_samplers_that_cannot_work_are_refused(target, args, message):
    with pytest.raises(ValueError, match=message):
        TorchSampler(40, batch_size=3, target=target, args=args).indices(0, 0, 2)
