"""Photographs from a stream: the gain from a second worker, compared with torch's DataLoader.

    python benchmarks/streams.py PHOTOGRAPHS [--count 1200] [--rounds 3]

An IterableDataset decodes and resizes photographs, and splits them by ``get_worker_info()``, as
torch's documentation recommends. Torch's DataLoader and ours read it with the same number of
processes; ours uses one reader per process. Ours also reads the same files from tar shards, in
order, and decodes in threads. Loaders take turns. The second epoch counts, after workers have
started.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from harness import alternate, keep_to_cores, markdown, paired, reply, run_cell, with_spread
from machine import describe
from photographs import find_photographs, link_photographs
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

ROOT = Path(__file__).resolve().parents[1]
SIDE = 224
BATCH = 64
CELLS = [
    f"{kind}, {workers} worker{'s' * (workers > 1)}"
    for kind in ("torch DataLoader", "ours", "ours, tar shards")
    for workers in (1, 2)
]


class Photographs(IterableDataset[Any]):
    """Photographs of a folder, decoded and resized: uint8 [224, 224, 3] and a label."""

    def __init__(self, root: str) -> None:
        self.root = root

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        cv2.setNumThreads(0)
        told = get_worker_info()
        first, step = (told.id, told.num_workers) if told is not None else (0, 1)
        for number, path in enumerate(sorted(Path(self.root).rglob("*.jpg"))[first::step]):
            image = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
            yield cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA), number % 10


def main() -> None:
    """Measure the loaders by turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--count", type=int, default=1200)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        link_photographs(find_photographs(arguments.photographs), scratch / "all", arguments.count)
        _pack(scratch)
        found = alternate(
            CELLS,
            arguments.rounds,
            lambda cell: run_cell(__file__, {"cell": cell, "root": str(scratch)}, timeout_s=600),
        )
    rows = []
    for cell, rates in found.items():
        one = found[f"{cell.rpartition(', ')[0]}, 1 worker"]
        peer = (
            rates
            if "shards" in cell
            else found[f"{CELLS[0].partition(',')[0]}, {cell.rpartition(', ')[2]}"]
        )
        if rates and one and peer:
            beside = "" if peer is rates else with_spread(paired(rates, peer))
            rows.append([cell, with_spread(rates, 0), with_spread(paired(rates, one)), beside])
    header = ["loader", "photographs/s", "/ one worker", "/ torch"]
    print(describe(), markdown(header, rows), sep="\n\n")


def _pack(scratch: Path) -> None:
    from penstock.datasets.storages.image_folder import ImageFolder
    from penstock.datasets.storages.webdataset import WebDatasetWriter
    from penstock.datasets.writing import write_storage

    write_storage(
        WebDatasetWriter(shard_records=100), scratch / "shards", ImageFolder(f"{scratch}/all")
    )


def _ours(given: list[str], workers: int) -> Any:
    from penstock import build_loader, compose

    return build_loader(
        compose(
            [*given, "augment=none", f"augment.image_size={SIDE}", "dataset.val_fraction=0",
             "loader=threads", f"loader.num_workers={workers}", f"loader.batch_size={BATCH}",
             "loader.drop_last=false"]
        )
    )  # fmt: skip


def cell(spec: dict[str, Any]) -> None:
    """Measure one loader."""
    keep_to_cores(2)
    kind, _, count = spec["cell"].rpartition(", ")
    workers = int(count.split()[0])
    photographs = f"{spec['root']}/all"
    loader: Any
    if kind.startswith("torch"):
        loader = DataLoader(
            Photographs(photographs), BATCH, num_workers=workers, persistent_workers=True
        )
    elif "shards" in kind:
        loader = _ours(["dataset=stream", f"dataset.source.path={spec['root']}/shards"], workers)
    else:
        target = ["dataset=torch", "dataset.target=streams.Photographs", "sampler=sequential"]
        arguments = [f"dataset.args={{root: {photographs}}}", f"dataset.readers={workers}"]
        loader = _ours([f"imports=[{__file__}]", *target, *arguments, "augment=as_is"], workers)
    for _ in range(2):
        start = time.perf_counter()
        rows = sum(len(batch["valid"] if isinstance(batch, dict) else batch[1]) for batch in loader)
        rate = rows / (time.perf_counter() - start)
    reply(rate)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent)]
    if sys.argv[1] == "--cell":
        cell(json.loads(sys.argv[2]))
    else:
        main()
