"""Cost of exactness: the keyed rng and the plan, per sample of the standard image workload.

The same decoding and augmentation stack runs with and without them, alternately in this process.
`keyed` sets the generator to every position and takes indices from the plan and the sampler. `free`
never resets its generator and takes indices from an array. The script measures processor time,
which other work on the machine hardly affects.

    python benchmarks/rng_cost.py /path/to/photographs [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock.core.rng import KeyedRng
from penstock.core.sample import Record
from penstock.pipeline.build import build_transform
from penstock.pipeline.config.compose import compose
from penstock.pipeline.instantiate import build
from penstock.pipeline.loader.plan import BatchPlan
from penstock.pipeline.samplers.random import RandomSampler

BATCH = 64


def main() -> None:
    """Print the median cost of a sample with and without keyed draws."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("photographs", type=Path, help="a folder of images")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    config = compose(["augment=imagenet", f"dataset.storage.path={arguments.photographs}"])
    decode, transform = build(config["dataset"]["decode"]), build_transform(config, "train")
    files = sorted(p for p in arguments.photographs.iterdir() if p.is_file())
    records = [Record(i, p.name, {"image": p.read_bytes()}) for i, p in enumerate(files)]
    plan = BatchPlan(len(records), BATCH, tail="keep")
    sampler, keyed_rng = RandomSampler(len(records), seed=1), KeyedRng()
    free_rng = KeyedRng().generator
    order = np.random.default_rng(0).permutation(len(records))

    def keyed(epoch: int) -> None:
        for number in range(plan.num_batches):
            positions, _ = plan.batch(number)
            indices = sampler.indices(epoch, int(positions[0]), int(positions[-1]) + 1)
            for index, position in zip(indices.tolist(), positions.tolist(), strict=True):
                transform(decode(records[index]), keyed_rng.at(1, epoch, position))

    def free(epoch: int) -> None:
        for index in order.tolist():
            transform(decode(records[index]), free_rng)

    times: dict[str, list[float]] = {"keyed": [], "free": []}
    keyed(0), free(0)  # build the stacks, fill the caches
    for epoch in range(arguments.rounds):
        for name, work in (("keyed", keyed), ("free", free)):
            start = time.process_time()
            work(epoch)
            times[name].append((time.process_time() - start) / len(records) * 1e6)
    ratios = [k / f - 1 for k, f in zip(times["keyed"], times["free"], strict=True)]
    for name, each in times.items():
        print(f"{name:<6} {statistics.median(each):8.1f} us a sample (median of {len(each)})")
    median, low, high = statistics.median(ratios), min(ratios), max(ratios)
    print(f"keyed costs {median:+.1%} (pairs: {low:+.1%} to {high:+.1%})")


if __name__ == "__main__":
    main()
