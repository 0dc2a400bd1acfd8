"""Cells end with all that they started, and what they say arrives."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from family import members, processor_s, pss_mb
from harness import CellError, alternate, paired, run_cell, with_spread
from rows.photo import augment, draw_crop
from targets import targets_table

from tests.benchmarks.conftest import BENCHMARKS

_CELL = f"""
import json, os, subprocess, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from harness import reply
spec = json.loads(sys.argv[-1])
subprocess.Popen(["sleep", spec["seconds"]])
if spec["do"] == "fail":
    sys.exit("out of paper")
if spec["do"] == "wait":
    time.sleep(60)
reply({{"session": os.getsid(0)}})
"""
_HOLDER = """
import sys
print(flush=True)
sys.stdin.readline()
block = b"x" * 50_000_000
print(flush=True)
sys.stdin.read()
"""


SECONDS = f"61.{os.getpid()}"
"""What a cell's own process sleeps: it is known by that among those of other tests."""


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    script = tmp_path / "cell.py"
    script.write_text(_CELL)
    return script


def test_a_cell_replies_and_leaves_no_process(cell):
    session = run_cell(cell, {"do": "reply", "seconds": SECONDS}, timeout_s=120)["session"]
    assert session != os.getsid(0)
    assert _gone(session)


def test_a_failing_cell_says_what_it_said(cell):
    with pytest.raises(CellError, match=r"exit code 1\nout of paper"):
        run_cell(cell, {"do": "fail", "seconds": SECONDS}, timeout_s=120)


def test_a_cell_that_takes_too_long_is_ended(cell):
    with pytest.raises(CellError, match="no result within 1 s"):
        run_cell(cell, {"do": "wait", "seconds": SECONDS}, timeout_s=1)
    assert not _with_argument(SECONDS)


def test_ctrl_c_amid_the_start_of_a_cell_leaves_no_process(cell, monkeypatch):
    submit = ThreadPoolExecutor.submit

    def interrupted(*arguments, **options):
        submit(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_cell(cell, {"do": "wait", "seconds": SECONDS}, timeout_s=120)
    assert not _with_argument(str(cell))


def test_what_fails_is_left_out_of_later_rounds(capsys):
    asked = []

    def measure(name):
        asked.append(name)
        if name == "bad":
            raise CellError("broken")
        return len(asked)

    results = alternate(["a", "bad", "c"], 3, measure)
    assert asked == ["a", "bad", "c", "c", "a", "a", "c"]
    assert results == {"a": [1, 5, 6], "bad": [], "c": [3, 4, 7]}
    assert "bad: failed: broken" in capsys.readouterr().err


def test_time_and_memory_of_this_process_are_plausible():
    me = [os.getpid()]
    assert os.getpid() in members()
    before, spent = processor_s(me), time.process_time()
    while time.process_time() - spent < 0.3:
        pass
    assert 0.25 < processor_s(me) - before < 0.6
    # This process shares libraries of hundreds of MB with others, which come and go.
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        holder.stdout.readline()
        without = pss_mb([holder.pid])
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.readline()
        assert 40 < pss_mb([holder.pid]) - without < 60
        holder.stdin.close()


def test_the_peers_crop_is_that_of_random_resized_crop():
    draw = random.Random(0).random
    boxes = np.array([draw_crop(400, 300, draw) for _ in range(4000)])
    left, top, width, height = boxes.T
    assert (left >= 0).all() and (left + width <= 400).all()
    assert (top >= 0).all() and (top + height <= 300).all()
    share = width * height / 120_000
    assert 0.078 < share.min() < 0.09 and share.max() > 0.97
    assert 0.74 < (width / height).min() and (width / height).max() < 1.35


def test_the_peers_image_is_the_crop_resized_and_flipped():
    image = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    for flip in (0.4, 0.6):
        draws = [0.3, 0.5, 0.2, 0.7]
        left, top, width, height = draw_crop(80, 60, iter(draws).__next__)
        out = np.empty((32, 32, 3), np.uint8)
        given = augment(image, 32, iter([*draws, flip]).__next__, out)
        expected = cv2.resize(image[top : top + height, left : left + width], (32, 32))
        expected = expected[:, ::-1] if flip < 0.5 else expected
        assert np.array_equal(out, expected) and np.array_equal(given, expected)


def test_ratios_are_of_the_same_round():
    assert with_spread(paired([10, 30, 20], [10, 10, 10])) == "2.00 (1.00–3.00)"


def test_targets_are_held_against_the_best_peer():
    rates = {"ours-threads": [120.0, 120.0], "a": [100.0, 100.0], "b": [110.0, 110.0], "c": []}
    efforts = {"ours-threads": [5.0, 5.0], "a": [10.0, 10.0], "b": [10.0, 10.0]}
    table = targets_table(rates, efforts, ["a", "b", "c"])
    assert "best peer (b) | 1.09 (1.09–1.09) | 2.00 (2.00–2.00) | 1.15 | **no** |" in table
    assert len(table.splitlines()) == 3  # what was not measured has no line


def _gone(session: int) -> bool:
    deadline = time.monotonic() + 120
    while members(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not members(session)


def _with_argument(argument: str) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if argument in _arguments(pid)]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []
