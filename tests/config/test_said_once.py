"""A mistake ends a program with status 2, without a traceback and without a file."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.programs import PENSTOCK

MISTAKE = "sampler=wheighted"
SAID = "type sampler=weighted"


def test_one_process_says_it_as_its_last_line(tmp_path):
    done = subprocess.run(
        [PENSTOCK, "train", MISTAKE], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(SAID) and done.stderr.count(SAID) == 1
    assert "Traceback" not in done.stderr and not [*tmp_path.iterdir()]


def test_torchrun_says_it_once_and_last(tmp_path):
    started = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    done = subprocess.run(
        [*started, "--no-python", PENSTOCK, "train", MISTAKE], cwd=tmp_path, timeout=200,
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count(SAID) == 1
    [*_, last] = [line for line in done.stderr.splitlines() if line.strip(" =")]
    assert last.rstrip().endswith(SAID), done.stderr
    assert not [*tmp_path.iterdir()]
