"""The benchmark for a GPU: refused without one, and a trial run that goes through all of it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = run("--out", str(tmp_path / "out"))
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr == "benchmarks/gpu.py needs a CUDA device; --cpu tries it without\n"


@pytest.mark.slow
def test_a_trial_run_measures_everything(tmp_path):
    done = run("--cpu", "--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    sections = {name: rows for name, rows in results.items() if isinstance(rows, dict)}
    assert len(sections) == 11 and not [rows for rows in sections.values() if "error" in rows]
    for engine in ("threads", "processes", "inline", "torch"):
        assert sections["exactness"][f"{engine}: batches"] > 0
        assert sections["exactness"][f"{engine}: wrong"] == 0
    assert sections["resuming"]["tensors that differ"] == 0


@pytest.mark.slow
def test_a_section_that_fails_does_not_stop_the_next(tmp_path, load, monkeypatch, capsys):
    gpu = load("gpu")
    monkeypatch.setitem(gpu.SECTIONS, "memory", lambda bench: 1 / 0)
    monkeypatch.setattr(
        "sys.argv", ["gpu.py", "--cpu", "--only", "memory,transfer", "--out", str(tmp_path)]
    )
    assert gpu.main() == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["memory"]["error"].startswith("ZeroDivisionError")
    assert results["transfer"]["registered memory is page-locked"] == 1
    assert "FAILED ZeroDivisionError" in capsys.readouterr().out


def event(cat: str, name: str, ts: float, dur: float) -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur}


def test_the_overlap_counts_time_in_which_kernels_run(load):
    overlap_share = load("overlap").overlap_share
    copy = "Memcpy HtoD (Pinned -> Device)"
    events = [
        event("gpu_memcpy", copy, 0, 10),
        event("gpu_memcpy", copy, 100, 30),
        event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 200, 50),
        event("kernel", "conv", 5, 10),
        event("kernel", "conv", 8, 4),
        event("kernel", "conv", 90, 20),
        event("kernel", "conv", 120, 100),
        event("cpu_op", "aten::conv2d", 0, 300),
        {"ph": "M", "name": "process_name"},
    ]
    assert overlap_share(events) == (5 + 10 + 10) / 40
    assert overlap_share([event("kernel", "conv", 0, 1)]) is None


def test_the_network_has_the_size_of_resnet_50(load):
    resnet = load("resnet").resnet
    with torch.device("meta"):
        model = resnet()
        assert sum(p.numel() for p in model.parameters()) == 25_557_032
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


def test_prepared_images_are_the_same_in_rows_and_out_of_them(load, tmp_path):
    import numpy as np

    prepared = load("prepared_images")
    dataset = prepared.PreparedImages(prepared.make_images(tmp_path / "x.npy", 70, 12), 8)
    indices, positions = np.array([3, 69, 3]), np.array([0, 1, 2])
    rows = np.zeros((3, *dataset.row_shape), np.uint8)
    samples = dataset.finish(dataset.read(indices, positions, 1), positions, 1, rows=rows)
    others = dataset.fetch(indices, positions, 1)
    for row, sample, other in zip(rows, samples, others, strict=True):
        assert (row == other["image"]).all() and np.shares_memory(sample["image"], rows)
    assert not (rows[0] == rows[2]).all(), "the same record at two positions"
