"""An epoch of a billion positions starts and jumps at once, in a few megabytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import build_loader, compose

ROOT = Path(__file__).resolve().parents[2]
TYPED = ["imports=[tests.laws.many_numbers]", "augment=none", "loader=inline",
         "loader.batch_size=256", "loader.drop_last=false", "seed=3"]  # fmt: skip

LOADERS = """
import json, resource, sys, time
from pathlib import Path
from penstock import build_loader

def jump(loader, epoch, batch):
    loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "next_batch": batch})
    return next(iter(loader))["index"].tolist()

small, *configs = json.load(sys.stdin)
next(iter(build_loader(small)))  # imports
"""

BILLION = (
    LOADERS
    + """
for config in configs:
    whole, ranked = build_loader(config), build_loader(config, rank=1, world_size=3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    seen = [next(iter(whole))["index"].tolist()]
    start_s = time.process_time() - start
    jumps = []
    for batch in (1, 10**6 + 7, len(whole) // 2, len(whole) - 1):
        start = time.process_time()
        seen.append(jump(ranked, 4, batch))
        jumps.append(time.process_time() - start)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps([start_s, max(jumps), memory / 1024, len(whole), seen]))
"""
)

WEIGHTS = (
    LOADERS
    + """
def own_mb():
    # Without the pages of mapped files, which processes share.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

before = own_mb()
weighted = build_loader(configs[0])
start = time.process_time()
drawn = jump(weighted, 5, len(weighted) // 2)
drawn_s = time.process_time() - start
print(json.dumps([drawn_s, own_mb() - before, drawn]))
"""
)


def _config(count: int, *given: str) -> dict[str, Any]:
    """Return the config of a loader of `count` records."""
    config = compose([*TYPED, *given])
    return {**config, "dataset": {"_target_": "dataset/laws_numbers", "count": count}}


def _results(code: str, *configs: Any, cache: Path) -> list[Any]:
    """Run a program on configs; return the lines that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    given = json.dumps([_config(70_000), *configs])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, input=given, stdout=subprocess.PIPE,
        text=True, timeout=600, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_epoch_of_a_billion_starts_and_jumps_at_once(tmp_path):
    configs = [_config(10**9, f"sampler={name}") for name in ("random", "sequential")]
    results = _results(BILLION, *configs, cache=tmp_path)
    assert len(results) == 2
    for start_s, jump_s, memory_mb, batches, seen in results:
        assert batches == 3_906_250
        # Seconds of processor time, to which other processes add nothing.
        assert start_s < 0.25 and jump_s < 0.25
        assert memory_mb < 16
        assert len({index for batch in seen for index in batch}) == sum(map(len, seen))
        assert all(0 <= index < 10**9 for batch in seen for index in batch)


def _weighted(count: int, weights: Path, replacement: str) -> dict[str, Any]:
    sampler = [f"sampler.replacement={replacement}", f"sampler.weights={weights}"]
    return _config(count, "sampler=weighted", *sampler)


def _draw(config: dict[str, Any], file: Path) -> None:
    loader = build_loader(config)
    state = {**loader.state_dict(), "epoch": 5, "next_batch": len(loader) // 2}
    loader.load_state_dict(state)
    file.write_text(json.dumps(next(iter(loader))["index"].tolist()))


@pytest.mark.parametrize("replacement", ["false", "true"])
def test_several_processes_make_an_order_once(replacement, tmp_path, monkeypatch):
    count = 300_000
    np.save(tmp_path / "weights.npy", np.linspace(0.1, 2.0, count))
    config = _weighted(count, tmp_path / "weights.npy", replacement)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = [tmp_path / f"{number}.json" for number in range(4)]
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_draw, args=(config, file)) for file in files]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    drawn = [json.loads(file.read_text()) for file in files]
    assert len(drawn[0]) == 256 and all(other == drawn[0] for other in drawn)
    made = sorted(tmp_path.glob("penstock/computed/*.npy"))
    assert len(made) == (1 if replacement == "true" else 2), "a table, and an order of the epoch"
    assert not list(tmp_path.glob("penstock/computed/.*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_million_weights_are_shared(tmp_path):
    count = 10**8
    weights = np.lib.format.open_memmap(tmp_path / "weights.npy", "w+", np.float64, (count,))
    weights[:] = 1.0
    weights[::2] = 3.0
    weights.flush()
    del weights
    config = _weighted(count, tmp_path / "weights.npy", "true")
    [first] = _results(WEIGHTS, config, cache=tmp_path)
    for _ in range(2):
        [(drawn_s, private_mb, drawn)] = _results(WEIGHTS, config, cache=tmp_path)
        assert drawn == first[-1]
        assert drawn_s < 1.0
        assert private_mb < 16, "the table is mapped, not copied"
    assert len(list(tmp_path.glob("penstock/computed/*.npy"))) == 1
