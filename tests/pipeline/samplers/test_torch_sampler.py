"""What a sampler of torch is told, and what its stored orders follow."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
from torch.utils.data import Sampler

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
