"""Rows per second of tables in files, compared with torch's DataLoader over tensors in memory.

Loaders shuffle 200,000 rows of 16 numbers (some missing), 4 categories and a label. Ours reads a
CSV file and a Parquet file through the real config (``dataset/decode=table``): it scales the
numbers, fills missing values, and looks up the categories. Torch gets ready tensors of numbers and
ids, and only gathers: row by row, the usual way to use ``TensorDataset``, and by whole batches of
indices (``batch_size=None`` and a ``BatchSampler``).

All loaders run in one process and take turns. A turn is an epoch, and the first epoch of each
loader does not count. The tables show the median, lowest and highest. Ratios are medians over the
rounds.

    python benchmarks/tables.py [--rounds 5] [--rows 200000] [--batches 512,4096] [--workers 2]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import numpy as np  # noqa: E402
from small import Epoch, counted, measured  # noqa: E402

NUMBERS, CATEGORIES = 16, (5, 20, 100, 1000)


def write_tables(folder: Path, count: int) -> None:
    """Write the same rows as CSV and as Parquet, in row groups of 20,000."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for number in range(NUMBERS):
        gone = rng.random(count) < 0.02
        columns[f"x{number}"] = pa.array(np.round(rng.normal(size=count), 4), mask=gone)
    for number, size in enumerate(CATEGORIES):
        names = np.array([f"v{i}" for i in range(size)])
        columns[f"c{number}"] = names[rng.integers(0, size, count)]
    table = pa.table({**columns, "label": rng.integers(0, 2, count)})
    pa.csv.write_csv(table, folder / "rows.csv")
    pa.parquet.write_table(table, folder / "rows.parquet", row_group_size=20_000)


def ours(path: Path, batch_size: int, *overrides: str) -> Epoch:
    """Return an epoch of our loader, by the config."""
    from penstock import compose
    from penstock.pipeline.build import build_loader

    config = compose(
        [
            f"dataset={path.suffix[1:]}", f"dataset.storage.path={path}", "dataset.val_fraction=0",
            "dataset/decode=table", "augment=as_is", f"loader.batch_size={batch_size}", *overrides,
            "loader.across_epochs=false",  # else it works ahead during the turns of other loaders
        ]
    )  # fmt: skip
    loader = build_loader(config, "train")
    return lambda: counted(len(batch["label"]) for batch in loader)


def torch_loader(count: int, batch_size: int, workers: int, *, batched: bool) -> Epoch:
    """Return an epoch of torch's DataLoader over a `TensorDataset`."""
    import torch
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

    features = torch.randn(count, 2 * NUMBERS)
    data = TensorDataset(
        features,
        torch.randint(0, 9, (count, len(CATEGORIES))),
        torch.randint(0, 2, (count,)),
    )
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    loader: Any
    if batched:
        sampler = BatchSampler(RandomSampler(data), batch_size, drop_last=True)
        loader = DataLoader(data, sampler=sampler, batch_size=None, **options)
    else:
        loader = DataLoader(data, batch_size, shuffle=True, drop_last=True, **options)
    return lambda: counted(len(labels) for _, _, labels in loader)


def ways_of(folder: Path, count: int, batch_size: int, workers: int) -> dict[str, Epoch]:
    """Return the measured loaders by name; ratios are to torch's best loader row by row."""
    ways = {
        f"torch, row by row, {n} workers": torch_loader(count, batch_size, n, batched=False)
        for n in (0, workers)
    }
    ways["torch, batches of indices"] = torch_loader(count, batch_size, 0, batched=True)
    threads = ["loader=threads", f"loader.num_workers={workers}"]
    for form in ("csv", "parquet"):
        path = folder / f"rows.{form}"
        ways[f"ours, {form}, inline"] = ours(path, batch_size, "loader=inline")
        ways[f"ours, {form}, {workers} threads"] = ours(path, batch_size, *threads)
        one = ["loader=processes", f"loader.num_workers={workers}"]
        ways[f"ours, {form}, {workers} threads in 1 process"] = ours(path, batch_size, *one)
    return ways


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batches", default="512,4096")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.processor() or platform.machine()}, {cores} cores, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        write_tables(Path(name), options.rows)
        for batch_size in map(int, options.batches.split(",")):
            ways = ways_of(Path(name), options.rows, batch_size, options.workers)
            rates = measured(ways, options.rounds)
            ways.clear()
            show(
                rates, f"{options.rows:,} rows, batches of {batch_size:,}, {options.rounds} rounds"
            )


def show(rates: dict[str, list[float]], title: str) -> None:
    """Print a table of rates, and ratios to torch's row by row in the same rounds."""
    by_rows = [values for name, values in rates.items() if "row by row" in name]
    best = max(by_rows, key=statistics.median)
    print(f"\n{title}\n")
    print(f"| {'what':<40} | rows/s | lowest to highest | x torch row by row |")
    print(f"|{'-' * 42}|{'-' * 7}:|{'-' * 18}:|{'-' * 19}:|")
    for name, values in rates.items():
        ratio = statistics.median(a / b for a, b in zip(values, best, strict=True))
        span = f"{min(values):,.0f} to {max(values):,.0f}"
        print(f"| {name:<40} | {statistics.median(values):,.0f} | {span} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
