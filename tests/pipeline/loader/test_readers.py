"""Readers of a stream that die."""

from __future__ import annotations

import os
import signal

from torch.utils.data import IterableDataset

from penstock.datasets.torch_dataset import open_torch
from penstock.pipeline.collates.fields import stack
from tests.pipeline.loader.fakes import make_loader


class Dying(IterableDataset):
    """Ends its process once in the middle."""

    def __init__(self, witness):
        self.witness = witness

    def __iter__(self):
        for number in range(600):
            if number == 500 and not self.witness.exists():
                self.witness.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"label": number}


def test_a_reader_that_dies_resumes_at_its_item(tmp_path):
    stream = open_torch(target=Dying, val_fraction=0.0, args={"witness": tmp_path / "witness"})
    with make_loader(stream, engine="threads", num_workers=1, collate=stack) as loader:
        labels = [n for batch in loader for n in batch["label"][batch["valid"]].tolist()]
    assert labels == [*range(600)]
