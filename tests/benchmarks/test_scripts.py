"""The benchmarks run through on tiny data, print their tables and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from rows import ROWS

from tests.benchmarks.conftest import BENCHMARKS

_TINY = ["--images", "16", "--batch-size", "4", "--size", "32"]
_TINY += ["--rounds", "1", "--epochs", "1"]


def start(tmp_path: Path, script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def finish(tmp_path: Path, process: subprocess.Popen[str]) -> str:
    said, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    assert not list(tmp_path.iterdir())  # temporary folders are gone
    return said


@pytest.mark.slow
def test_the_loaders_table(tmp_path, photographs, tmp_path_factory):
    output = tmp_path_factory.mktemp("output") / "figures.json"
    rows = "floor,ours-tiled-whole"
    process = start(
        tmp_path, "run.py", str(photographs), *_TINY, "--rows", rows, "--json", str(output)
    )
    said = finish(tmp_path, process)
    names = {"floor", "ours-tiled-whole"}
    labels = {row.label for row in ROWS if row.name in names}
    for row in ROWS:
        assert (f"| {row.label} |" in said) == (row.label in labels), row
    results = json.loads(output.read_text())["results"]
    assert set(results) == names
    for name, each in results.items():
        assert all(value > 0 for key, value in each[0].items() if key != "first_s"), (name, each)


@pytest.mark.slow
def test_tables(tmp_path):
    arguments = ["--rows", "300", "--rounds", "1", "--batches", "50"]
    said = finish(tmp_path, start(tmp_path, "tables.py", *arguments))
    rows = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| ")]
    assert rows[1:4] == [
        "torch, row by row, 0 workers", "torch, row by row, 2 workers", "torch, batches of indices",
    ]  # fmt: skip
    assert len(rows) == 10 and all(row.startswith("ours, ") for row in rows[4:])


@pytest.mark.slow
def test_packing(tmp_path):
    arguments = ["--count", "300", "--rounds", "1", "--rows", "ours-one,ours-quality,lmdb,pyarrow"]
    said = finish(tmp_path, start(tmp_path, "pack.py", *arguments))
    rows = [line.split("|")[1].strip() for line in said.splitlines() if line.startswith("| ")]
    assert rows[2:] == [
        "reading the files alone (floor)", "pack to lmdb, pack.num_workers=0",
        "pack to lmdb, pack.quality=90", "lmdb: put, 1,000 a transaction",
        "pyarrow: ParquetWriter, 1,000 a row group",
    ]  # fmt: skip


@pytest.mark.slow
def test_kills(tmp_path):
    said = finish(tmp_path, start(tmp_path, "kills.py", "--signals", "3"))
    assert "signals 3:" in said and "wrong 0" in said and "quarantined 0" in said


@pytest.mark.slow
def test_growth(tmp_path):
    arguments = ["--largest", "3", "--workers", "1", "--rounds", "1", "--batches", "4"]
    said = finish(tmp_path, start(tmp_path, "growth.py", *arguments))
    assert "| 1,000 |" in said and "| workers |" in said


@pytest.mark.slow
def test_exactness(tmp_path):
    said = finish(tmp_path, start(tmp_path, "exactness.py", "penstock"))
    assert said.splitlines()[2:] == ["| penstock | yes | yes | yes | yes | continues |"]


@pytest.mark.slow
def test_stage_times(tmp_path):
    said = finish(tmp_path, start(tmp_path, "stage_times.py", "--rounds", "1"))
    assert said.count("with / without") == 2


@pytest.mark.slow
def test_a_slow_link(tmp_path, photographs):
    arguments = ["--count", "128", "--latency-ms", "1", "--rounds", "1"]
    said = finish(tmp_path, start(tmp_path, "remote.py", str(photographs), *arguments))
    for loader in ("ours, random over all shards", "torch DataLoader, a request each"):
        assert f"| {loader} |" in said


@pytest.mark.slow
def test_memory(tmp_path, photographs):
    arguments = ["--workers", "1", "--model-s", "0", "--epochs", "1", "--rounds", "1"]
    arguments += ["--images", "16", "--batch-size", "4"]
    said = finish(tmp_path, start(tmp_path, "memory.py", str(photographs), *arguments))
    for way in ("threads, 1", "processes, 1"):
        assert f"| {way} |" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_benchmark_that_is_broken_off_leaves_nothing(tmp_path, photographs, number):
    process = start(tmp_path, "run.py", str(photographs), *_TINY, "--rows", "ours-threads")
    deadline = time.monotonic() + 120
    while not (children := _children(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.002)
    assert children
    process.send_signal(number)
    process.communicate(timeout=250)
    assert process.returncode != 0
    assert not list(tmp_path.iterdir())
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.skipif(find_spec("ffcv") is not None, reason="FFCV is installed")
def test_a_peer_that_is_not_installed_is_listed(tmp_path, photographs):
    said = finish(tmp_path, start(tmp_path, "run.py", str(photographs), *_TINY, "--rows", "ffcv"))
    why = "not installed: ModuleNotFoundError: No module named 'ffcv'"
    assert f"Not measured: ffcv-jpeg ({why}); ffcv-prepared ({why})" in said


def test_no_row_is_named_twice():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert (BENCHMARKS / "rows" / f"{row.module}.py").is_file()


def _children(pid: int) -> list[int]:
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, thread.read_text().split())
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_spec("kornia") is None, reason="needs kornia")
def test_device_steps(tmp_path):
    said = finish(tmp_path, start(tmp_path, "device_steps.py", "--cpu")).splitlines()
    assert len(said) == 7
    for line in said[2:]:
        ours, kornia = (float(cell.replace(",", "")) for cell in line.split("|")[2:4])
        assert ours > 0 and kornia > 0
