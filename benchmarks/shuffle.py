"""Shuffle quality of orders with locality, compared with a permutation of all records.

    python benchmarks/shuffle.py [--records 1280000] [--shards 128]

This file reimplements the orders of MosaicML's library for one node. *py1s* permutes shards and the
records of each shard. *py1b* permutes shards, and the records within blocks of fixed size. *py1e*
permutes shards, then moves each record by a uniform draw of up to half a block either way. The data
is assumed to be sorted by the target, shard by shard, which is the worst case.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import markdown
from numpy.typing import NDArray

Order = NDArray[np.int64]

ROOT = Path(__file__).resolve().parents[1]
BATCH = 256
BLOCK = 1 << 18  # the smallest default of MosaicML's library
EPOCHS = 4
HEADER = ["order", "shards in a batch", "noise of a batch's mean", "pairs that meet again"]


def main() -> None:
    """Measure each order over some epochs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_280_000)
    parser.add_argument("--shards", type=int, default=128)
    arguments = parser.parse_args()
    n, shards = arguments.records, arguments.shards
    orders = orders_of(n, shards)
    found = {name: measure([order(epoch) for epoch in range(EPOCHS)], n, shards)
             for name, order in orders.items()}  # fmt: skip
    best = found["all records"]
    rows = [
        [name, f"{each[0]:.1f}", f"{each[1] / best[1]:.2f}", f"{each[2] / best[2]:.1f}"]
        for name, each in found.items()
    ]
    print(
        f"{n:,} records in {shards} shards, batches of {BATCH}", markdown(HEADER, rows), sep="\n\n"
    )


def orders_of(n: int, shards: int) -> dict[str, Callable[[int], Order]]:
    """Return functions by name, each from an epoch to its order, int64 [n]."""
    from penstock.pipeline.samplers.random import RandomSampler, ShardShuffleSampler

    firsts = np.arange(shards) * n // shards

    def ours(window: int) -> Callable[[int], Order]:
        sampler = ShardShuffleSampler(n, shards=lambda: firsts, window=window)
        return lambda epoch: sampler.indices(epoch, 0, n)

    def permuted(rng: np.random.Generator) -> list[Order]:
        parts = np.split(np.arange(n), firsts[1:])
        return [parts[shard] for shard in rng.permutation(shards)]

    def py1s(epoch: int) -> Order:
        rng = np.random.default_rng(epoch)
        return np.concatenate([rng.permutation(part) for part in permuted(rng)])

    def py1b(epoch: int) -> Order:
        rng = np.random.default_rng(epoch)
        order = np.concatenate(permuted(rng))
        for start in range(0, n, BLOCK):
            rng.shuffle(order[start : start + BLOCK])
        return order

    def py1e(epoch: int) -> Order:
        rng = np.random.default_rng(epoch)
        order = np.concatenate(permuted(rng))
        return order[np.argsort(np.arange(n) + rng.uniform(-BLOCK / 2, BLOCK / 2, n))]

    everything = RandomSampler(n)
    return {
        "all records": lambda epoch: everything.indices(epoch, 0, n),
        "py1e": py1e,
        "py1b": py1b,
        **{f"shard_shuffle, window={window}": ours(window) for window in (32, 16, 4)},
        "py1s": py1s,
    }


def measure(orders: list[Order], n: int, shards: int) -> tuple[float, float, float]:
    """Measure the orders of epochs.

    Returns:
        Distinct shards in a batch; the standard deviation of a batch's mean, for a value that rises
        along the data; and the number of pairs that share a batch in this and the next epoch.
    """
    whole = n // BATCH * BATCH
    batches = [order[:whole].reshape(-1, BATCH) for order in orders]
    distinct = np.mean([
        np.count_nonzero(np.diff(np.sort(rows * shards // n, axis=1)), axis=1).mean() + 1
        for rows in batches
    ])  # fmt: skip
    noise = np.mean([(rows / n).mean(axis=1).std() for rows in batches])
    again = []
    for rows, following in itertools.pairwise(orders):
        batch_of = np.empty(n, np.int64)
        batch_of[following] = np.arange(n) // BATCH
        ids = np.sort(batch_of[rows[:whole].reshape(-1, BATCH)], axis=1)
        # Of r records with one batch, r * (r - 1) / 2 pairs meet again.
        starts = np.flatnonzero(np.diff(ids, axis=1, prepend=-1).ravel())
        runs = np.diff(np.append(starts, ids.size))
        again.append((runs * (runs - 1) / 2).sum())
    return float(distinct), float(noise), float(np.mean(again))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent)]
    main()
