"""Time and memory to start an epoch and to jump into it, over 10^3 ... 10^9 positions.

Each cell runs in a process of its own, so that its memory is its own. Torch's samplers stand
beside ours, up to the size where they would need more than a few gigabytes.

    python benchmarks/scale.py [--largest 9]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
# Beyond these sizes a sampler's lists take gigabytes or it refuses: powers of ten.
LARGEST = {"torch random": 8, "torch weighted": 7, "ours weighted": 8}


def ours_random(n: int) -> tuple[float, float]:
    """Seconds to the first batch of epoch 0, and to one in the middle of epoch 7."""
    from pipeline.samplers.random import RandomSampler

    return _ours(lambda: RandomSampler(n, seed=1), n)


def ours_weighted(n: int) -> tuple[float, float]:
    """The same, by weight; the weights are a file, as a user of this many would have them."""
    import numpy as np

    from pipeline.samplers.weighted import WeightedSampler

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.npy"
        weights = np.lib.format.open_memmap(file, "w+", np.float64, (n,))
        weights[:] = 1.0
        weights[::2] = 3.0
        weights.flush()
        return _ours(lambda: WeightedSampler(n, seed=1, weights=str(file)), n)


def _ours(make, n: int) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    sampler = make()
    sampler.indices(0, 0, min(BATCH, n))
    first = time.perf_counter() - start
    start = time.perf_counter()
    sampler.indices(7, n // 2, min(n // 2 + BATCH, n))
    return first, time.perf_counter() - start


def torch_random(n: int) -> tuple[float, float]:
    """Torch's, up to the first batch; a jump means drawing the epoch and skipping half of it."""
    from torch.utils.data import RandomSampler

    return _torch(RandomSampler(range(n)), n)


def torch_weighted(n: int) -> tuple[float, float]:
    """Torch's, by weight."""
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


def measure(name: str, n: int) -> None:
    """Run one cell in this process and print its figures."""
    # What importing costs is not the sampler's.
    import_module("torch" if name.startswith("torch") else "pipeline.samplers.weighted")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    first, jump = SAMPLERS[name](n)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(first, jump, memory / 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=9, help="largest power of ten")
    parser.add_argument("--cell", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        measure(arguments.cell[0], int(arguments.cell[1]))
        return
    print(f"{'positions':>13}  {'sampler':<15} {'first batch':>12} {'jump':>12} {'memory':>10}")
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache}
        for power in range(3, arguments.largest + 1):
            for name in SAMPLERS:
                if power > LARGEST.get(name, power):
                    continue
                command = [sys.executable, __file__, "--cell", name, str(10**power)]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                first, jump, memory = (float(figure) for figure in done.stdout.split())
                print(
                    f"{10**power:>13,}  {name:<15} {first * 1e3:>9.2f} ms {jump * 1e3:>9.2f} ms "
                    f"{memory:>7.1f} MB"
                )


if __name__ == "__main__":
    main()
