"""A thousand million positions: at once, anywhere, in a few megabytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BILLION = """
import json, resource, time
import numpy as np
from penstock.core.sample import Sample
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader.loader import Loader
from penstock.pipeline.loader.settings import LoaderSettings
from penstock.pipeline.samplers.{module} import {name} as Sampler

N = 10**9

class Numbers:
    index = None
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def fetch(self, indices, positions, epoch):
        return [{{"image": np.zeros((2, 2, 3), np.uint8), "index": i, "key": str(i), "position": p}}
                for i, p in zip(indices.tolist(), positions.tolist())]
    def fingerprint(self):
        return "numbers"

settings = LoaderSettings(engine="inline", num_workers=0, batch_size=256, drop_last=False)

def loader(rank=0, world_size=1, n=N):
    return Loader(Numbers(n), sampler=Sampler(n{seed}), collate=stack, settings=settings, seed=3,
                  rank=rank, world_size=world_size)

next(iter(loader(n=70_000)))  # imports
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
first = next(iter(loader()))["index"]
start_s = time.process_time() - start
jumps = []
seen = [first.tolist()]
state = loader().state_dict()
for batch in (1, 10**6 + 7, len(loader()) // 2, len(loader()) - 1):
    at = loader(rank=1, world_size=3)
    start = time.process_time()
    at.load_state_dict(state | {{"epoch": 4, "next_batch": batch}})
    seen.append(next(iter(at))["index"].tolist())
    jumps.append(time.process_time() - start)
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([start_s, max(jumps), memory / 1024, len(loader()), seen]))
"""

SHARED = """
import json, sys, time
from pathlib import Path
from penstock.pipeline.samplers.weighted import WeightedSampler

def own_mb():
    # Not the pages of mapped files: they are the system's, once for all processes.
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) / 1024

before = own_mb()
start = time.process_time()
n, weights, replacement = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"
sampler = WeightedSampler(n, seed=1, weights=weights, replacement=replacement)
made_s = time.process_time() - start
start = time.process_time()
drawn = sampler.indices(5, len(sampler) // 2, len(sampler) // 2 + 256).tolist()
drawn_s = time.process_time() - start
print(json.dumps([made_s, drawn_s, own_mb() - before, drawn]))
"""


def _start(code: str, *arguments: str, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> list:
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.parametrize(
    ("module", "name"), [("random", "RandomSampler"), ("sequential", "SequentialSampler")]
)
def test_an_epoch_of_a_billion_starts_and_jumps_at_once(module, name, tmp_path):
    seed = ", seed=3" if name == "RandomSampler" else ""
    code = BILLION.format(module=module, name=name, seed=seed)
    start_s, jump_s, memory_mb, batches, seen = _result(_start(code, cache=tmp_path))
    assert batches == 3_906_250
    # Milliseconds of the processor; whatever else is at work takes nothing of them.
    assert start_s < 0.25 and jump_s < 0.25
    assert memory_mb < 16
    assert len({index for batch in seen for index in batch}) == sum(map(len, seen))
    assert all(0 <= index < 10**9 for batch in seen for index in batch)


@pytest.mark.parametrize("replacement", ["0", "1"])
def test_several_processes_at_once_make_an_order_once(replacement, tmp_path):
    import numpy as np

    count = 300_000
    np.save(tmp_path / "weights.npy", np.linspace(0.1, 2.0, count))
    arguments = (str(count), str(tmp_path / "weights.npy"), replacement)
    processes = [_start(SHARED, *arguments, cache=tmp_path) for _ in range(4)]
    drawn = [_result(process)[3] for process in processes]
    assert all(other == drawn[0] for other in drawn)
    made = sorted(tmp_path.glob("penstock/computed/*.npy"))
    assert len(made) == (1 if replacement == "1" else 2), "a table, and an order of the epoch"
    assert not list(tmp_path.glob("penstock/computed/.*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_million_weights_are_shared(tmp_path):
    import numpy as np

    count = 10**8
    weights = np.lib.format.open_memmap(tmp_path / "weights.npy", "w+", np.float64, (count,))
    weights[:] = 1.0
    weights[::2] = 3.0
    weights.flush()
    del weights
    arguments = (str(count), str(tmp_path / "weights.npy"), "1")
    first = _result(_start(SHARED, *arguments, cache=tmp_path))
    others = [_result(_start(SHARED, *arguments, cache=tmp_path)) for _ in range(2)]
    for _, drawn_s, private_mb, drawn in others:
        assert drawn == first[3]
        assert drawn_s < 1.0
        assert private_mb < 16, "the table is mapped, not copied"
    assert len(list(tmp_path.glob("penstock/computed/*.npy"))) == 1
