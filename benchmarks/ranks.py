"""Cost of the order and the index of up to 10^10 records on one of 1,024 ranks.

    python benchmarks/ranks.py [--largest 10] [--records 20000]

The order: a plan and a sampler return the last rank's rows of the first batch, and of a batch in
the middle of a later epoch. The index: one process opens small images, packed in several forms, for
the first time on the machine; then a second process opens them. Each cell runs in a separate
process. The ranks of a machine share the counted files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import markdown, reply, run_cell, stop_when_terminated
from machine import describe

from penstock.core.contracts import Storage

ROOT = Path(__file__).resolve().parents[1]
RANKS, EACH = 1024, 64
LARGEST = {"weighted": 8}  # a table of 16 bytes for each record
FORMS = ("image_folder", "webdataset", "lmdb", "parquet", "memmap")


def order(name: str, n: int) -> dict[str, float]:
    """Measure the plan and sampler of the last rank, in this process."""
    from penstock.datasets.records.table import Table
    from penstock.pipeline.loader.plan import BatchPlan
    from penstock.pipeline.samplers.random import (
        RandomSampler,
        SequentialSampler,
        ShardShuffleSampler,
    )
    from penstock.pipeline.samplers.weighted import WeightedSampler

    kinds: dict[str, Any] = {
        "sequential": lambda: SequentialSampler(n),
        "random": lambda: RandomSampler(n, seed=1),
        "shard_shuffle": lambda: ShardShuffleSampler(n, seed=1, shard_records=10_000),
        "weighted": lambda: WeightedSampler(n, Table([], {}), 1, weights=str(_weights(n))),
    }
    before = _own()
    start = time.perf_counter()
    plan = BatchPlan(n, EACH * RANKS, world_size=RANKS, rank=RANKS - 1)
    sampler = kinds[name]()
    _rows(plan, sampler, 0, 0)
    first_s = time.perf_counter() - start
    start = time.perf_counter()
    _rows(plan, sampler, 7, plan.num_batches // 2)
    jump_s = time.perf_counter() - start
    own = _own() - before
    return {"first_s": first_s, "jump_s": jump_s, "own_mb": own / 1e6, "files_mb": _cache() / 1e6}


def _own() -> int:
    """Return the private bytes of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def _rows(plan: Any, sampler: Any, epoch: int, number: int) -> None:
    positions, _ = plan.batch(number, epoch)
    assert positions.size == EACH
    sampler.indices(epoch, int(positions[0]), int(positions[-1]) + 1)


def _weights(n: int) -> Path:
    file = Path(os.environ["XDG_CACHE_HOME"]).parent / f"weights-{n}.npy"
    if not file.exists():
        weights = np.lib.format.open_memmap(file, "w+", np.float64, (n,))
        weights[:] = 1.0
        weights[::2] = 3.0
        weights.flush()
    return file


def _cache() -> int:
    return sum(f.stat().st_size for f in Path(os.environ["XDG_CACHE_HOME"]).rglob("*.*"))


def index(form: str, folder: str) -> dict[str, float]:
    """Measure opening packed data, in this process."""
    from penstock.core.registry import find
    from penstock.pipeline.config.components import register_components

    register_components()
    component = find(f"storage/{form}")
    assert component is not None
    before, files = _own(), _cache()
    start = time.perf_counter()
    storage = component.target(folder)
    rng = np.random.default_rng(0)
    for _ in range(100):
        picked = rng.integers(0, len(storage.index), EACH)
        storage.index.keys(picked)
        storage.index.values("label", picked)
    open_s = time.perf_counter() - start
    own = _own() - before
    return {"open_s": open_s, "own_mb": own / 1e6, "files": _cache() - files, "n": len(storage)}


def _pack(scratch: Path, count: int) -> None:
    """The same images in every form."""
    import cv2

    from penstock.datasets.storages.arrays import MemmapWriter
    from penstock.datasets.storages.image_folder import ImageFolder
    from penstock.datasets.storages.lmdb import LmdbWriter
    from penstock.datasets.storages.parquet import ParquetWriter
    from penstock.datasets.storages.webdataset import WebDatasetWriter
    from penstock.datasets.writing import write_storage

    image = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    for number in range(count):
        file = scratch / "image_folder" / f"class{number % 10}" / f"{number:08d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image)
    source = ImageFolder(str(scratch / "image_folder"))
    for form, writer in (
        ("webdataset", WebDatasetWriter()), ("lmdb", LmdbWriter()), ("parquet", ParquetWriter()),
    ):  # fmt: skip
        write_storage(writer, scratch / form, source)
    write_storage(MemmapWriter(), scratch / "memmap", _Decoded(source))


class _Decoded(Storage):
    """Decoded images of a storage."""

    def __init__(self, storage: Any) -> None:
        self._storage, self.index = storage, storage.index

    def read(self, indices: Any) -> list[Any]:
        records = self._storage.read(indices)
        for record in records:
            record.fields["image"] = np.zeros((8, 8, 3), np.uint8)
        return list(records)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=10, help="largest power of ten")
    parser.add_argument("--records", type=int, default=20_000)
    arguments = parser.parse_args()
    stop_when_terminated()
    orders, indexes = [], []
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        for power in range(6, arguments.largest + 1, 2):
            for kind in ("sequential", "random", "shard_shuffle", "weighted"):
                if power > LARGEST.get(kind, power):
                    continue
                os.environ["XDG_CACHE_HOME"] = str(scratch / f"cache-{kind}-{power}")
                Path(os.environ["XDG_CACHE_HOME"]).mkdir()
                cells = [_cell("order", name=kind, n=10**power) for _ in range(2)]
                orders.append(
                    [f"10^{power}", kind, *(f"{c['first_s'] * 1e3:,.1f} ms" for c in cells),
                     f"{cells[1]['jump_s'] * 1e3:,.2f} ms", f"{cells[1]['own_mb']:,.1f} MB",
                     f"{cells[0]['files_mb']:,.1f} MB"]
                )  # fmt: skip
        os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
        Path(os.environ["XDG_CACHE_HOME"]).mkdir()
        _pack(scratch, arguments.records)
        for form in FORMS:
            os.environ["XDG_CACHE_HOME"] = str(scratch / f"cache-{form}")
            Path(os.environ["XDG_CACHE_HOME"]).mkdir()
            first, again = (_cell("index", form=form, folder=str(scratch / form)) for _ in range(2))
            n = first["n"]
            indexes.append(
                [form, f"{(first['open_s'] - again['open_s']) / n * 1e6:,.2f} µs",
                 f"{first['files'] / n:,.0f} B", f"{again['open_s'] * 1e3:,.0f} ms",
                 f"{again['own_mb']:,.1f} MB"]
            )  # fmt: skip
    print(describe())
    header = ["records", "sampler", "first rank", "another", "a jump", "own memory", "files"]
    print("", markdown(header, orders), sep="\n")
    header = ["form", "first time, a record", "file, a record", "opened again", "own memory"]
    print("", markdown(header, indexes), sep="\n")


def _cell(kind: str, **given: Any) -> Any:
    return run_cell(__file__, {"kind": kind, **given}, timeout_s=600)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent)]
    if sys.argv[1:2] == ["--cell"]:
        spec = json.loads(sys.argv[2])
        reply({"order": order, "index": index}[spec.pop("kind")](**spec))
    else:
        main()
