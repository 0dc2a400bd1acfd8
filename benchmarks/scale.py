"""Time and memory to start an epoch and to jump into it, over 10^3 ... 10^9 positions.

Each cell runs in a separate process, which isolates its memory. The table compares torch's samplers
with ours, up to the size where torch's would need more than a few gigabytes.

    python benchmarks/scale.py [--largest 9]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

from harness import markdown, reply, run_cell, stop_when_terminated
from machine import describe

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
TIMEOUT_S = 600
# Powers of ten; beyond them, a sampler's lists take gigabytes or the sampler refuses.
LARGEST = {"torch random": 8, "torch weighted": 7, "ours weighted": 8}


def ours_random(n: int) -> tuple[float, float]:
    """Return seconds to the first batch of epoch 0, and to one in the middle of epoch 7."""
    from penstock.pipeline.samplers.random import RandomSampler

    return _ours(lambda: RandomSampler(n, seed=1), n)


def ours_weighted(n: int) -> tuple[float, float]:
    """Measure sampling by weight; the weights are in a file, as is usual at this size."""
    import numpy as np

    from penstock.pipeline.samplers.weighted import WeightedSampler

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.npy"
        weights = np.lib.format.open_memmap(file, "w+", np.float64, (n,))
        weights[:] = 1.0
        weights[::2] = 3.0
        weights.flush()
        from penstock.datasets.records.table import Table

        return _ours(lambda: WeightedSampler(n, Table([], {}), 1, weights=str(file)), n)


def _ours(make, n: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    sampler = make()
    sampler.indices(0, 0, min(BATCH, n))
    first = time.perf_counter() - start
    start = time.perf_counter()
    sampler.indices(7, n // 2, min(n // 2 + BATCH, n))
    return first, time.perf_counter() - start


def torch_random(n: int) -> tuple[float, float]:
    """Measure torch's random sampler; to jump, it draws the epoch and skips half of it."""
    from torch.utils.data import RandomSampler

    return _torch(RandomSampler(range(n)), n)


def torch_weighted(n: int) -> tuple[float, float]:
    """Measure torch's weighted sampler."""
    import torch
    from torch.utils.data import WeightedRandomSampler

    return _torch(WeightedRandomSampler(torch.ones(n, dtype=torch.float64), n), n)


def _torch(sampler, n: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    from itertools import islice

    start = time.perf_counter()
    list(islice(iter(sampler), min(BATCH, n)))
    first = time.perf_counter() - start
    start = time.perf_counter()
    list(islice(iter(sampler), n // 2, min(n // 2 + BATCH, n)))
    return first, time.perf_counter() - start


SAMPLERS = {
    "ours random": ours_random,
    "torch random": torch_random,
    "ours weighted": ours_weighted,
    "torch weighted": torch_weighted,
}


def measure(name: str, n: int) -> dict[str, float]:
    """Run one cell in this process: seconds to the first batch, seconds of a jump, megabytes."""
    sys.path.insert(0, str(ROOT))
    # Import first, to exclude the memory and time of the import.
    import_module("torch" if name.startswith("torch") else "penstock.pipeline.samplers.weighted")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first_s, jump_s = SAMPLERS[name](n)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"first_s": first_s, "jump_s": jump_s, "memory_mb": memory / 1024}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=9, help="largest power of ten")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        reply(measure(**json.loads(arguments.cell)))
        return
    stop_when_terminated()
    lines = []
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for power in range(3, arguments.largest + 1):
            for name in SAMPLERS:
                if power > LARGEST.get(name, power):
                    continue
                cell = run_cell(__file__, {"name": name, "n": 10**power}, timeout_s=TIMEOUT_S)
                first, jump = f"{cell['first_s'] * 1e3:,.2f} ms", f"{cell['jump_s'] * 1e3:,.2f} ms"
                lines.append([f"{10**power:,}", name, first, jump, f"{cell['memory_mb']:,.0f} MB"])
                print("  ", *lines[-1], file=sys.stderr)
    print(describe(), "\n")
    print(markdown(["positions", "sampler", "first batch", "jump into epoch 7", "memory"], lines))


if __name__ == "__main__":
    main()
