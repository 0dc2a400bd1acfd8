"""Training runs of the tiny job, here or in processes of their own, and what they leave behind."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from penstock.pipeline.training.checkpoint import read_checkpoint
from tests.pipeline.training.tiny_job import ROOT

SCRIPT = str(Path(__file__).with_name("tiny_job.py"))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start(config, *, ranks=1, restarts=0, environment=(), **options):
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        launcher += [f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [*launcher, SCRIPT, json.dumps(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **dict(environment)},
        **options,
    )


def the_folder(outputs: Path) -> Path:
    (folder,) = outputs.glob("*/*")
    return folder


def checkpoint(folder: Path, name: str = "last.pt"):
    return read_checkpoint(folder / "checkpoints" / name)


def weights(folder: Path, name: str = "last.pt"):
    return checkpoint(folder, name)["model"]


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_near(one, other):
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-6)


def rows(folder: Path):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


SLOW_2 = pytest.param(2, marks=pytest.mark.slow)
