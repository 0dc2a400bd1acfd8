"""A record that kills its worker: it is quarantined once, for the rest of the run."""

from __future__ import annotations

import os

import numpy as np
import pytest

from penstock import build_loader, compose

ROWS, DEADLY = 48, 20


COMPONENT = """
import os
import signal

from penstock import register


@register("transform", "deadly_record")
def deadly_record(sample, rng, *, witness: str, main: int):
    if sample["label"] == 20 and os.getpid() != main:
        with open(witness, "a") as file:
            file.write("killed\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return sample
"""


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "deadly.py").write_text(COMPONENT)
    np.save(tmp_path / "image.npy", np.zeros((ROWS, 8, 8, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.arange(ROWS))
    return [
        "dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0",
        f"imports=[{tmp_path}/deadly.py]", "transform=deadly_record",
        f"augment.train.deadly_record.witness={tmp_path / 'witness'}",
        f"augment.train.deadly_record.main={os.getpid()}",
        "loader.batch_size=8", "loader.num_workers=1", "loader.engine=processes",
        "loader.across_epochs=false",
    ]  # fmt: skip


def kills(tmp_path):
    return (tmp_path / "witness").read_text().count("\n")


def labels(loader):
    return [batch["label"].tolist() for batch in loader]


def test_a_killing_record_kills_in_one_epoch_of_a_run_and_of_its_checkpoints(settings, tmp_path):
    with build_loader(compose(settings), "train") as loader:
        first = labels(loader)
        killed, state = kills(tmp_path), loader.state_dict()
        second, third = labels(loader), labels(loader)
        assert killed and kills(tmp_path) == killed
    with build_loader(compose(settings), "train") as resumed:
        resumed.load_state_dict(state)
        assert [labels(resumed), labels(resumed)] == [second, third]
        assert kills(tmp_path) == killed
    for epoch in (first, second, third):
        assert all(DEADLY not in batch for batch in epoch)
