"""Which loaders give the same batches with any number of workers, and after a resume.

``python benchmarks/exactness.py [TOOL ...]`` runs every installed tool as its own documentation
recommends, on 384 records with a random draw for each. The script compares the records of every
batch, and the draws, with 1, 2 and 4 worker processes. It stops after three batches of two workers,
and resumes from the loader's state with two workers, and with one. It kills one of two workers, and
checks whether the rest of the epoch arrives and is correct.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import numpy as np

Batches = list[tuple[list[int], list[int]]]
"""Record numbers and draws of each batch."""

RECORDS, BATCH, SEED, STOP = 384, 8, 3, 3
EPOCH = RECORDS // BATCH
HANGS_S = 60
TOOLS = {
    "penstock": "penstock",
    "DataLoader": "torch",
    "StatefulDataLoader": "torchdata",
    "WebDataset": "webdataset",
    "LitData": "litdata",
    "MosaicML Streaming": "streaming",
    "Grain": "grain",
}


def read(loader: Iterable[Any], count: int | None = None) -> Batches:
    """Batches as plain numbers."""
    return [
        (np.asarray(batch["id"]).tolist(), np.asarray(batch["draw"]).tolist())
        for batch in islice(loader, count)
    ]


def drawn(record: int) -> dict[str, int]:
    """A record with a draw from Python's global state, as most augmentations make it."""
    return {"id": record, "draw": random.getrandbits(30)}


class Records:
    """A map-style data set."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> dict[str, int]:
        return drawn(index)


def seeded() -> None:
    """Seed the generators that a user seeds before training."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)


COMPONENT = """import numpy as np
from penstock import register

@register("transform", "draw")
def draw(sample: dict, rng: np.random.Generator) -> dict:
    return {**sample, "draw": int(rng.integers(1 << 30))}
"""


def penstock(folder: Path, workers: int) -> Any:
    """Ours, on arrays, with a component of the user's."""
    from penstock import build_loader, compose

    if not (folder / "id.npy").exists():
        np.save(folder / "id.npy", np.arange(RECORDS))
        (folder / "draw_component.py").write_text(COMPONENT)
    config = compose(
        [
            f"imports=[{folder}/draw_component.py]", "dataset=memmap",
            f"dataset.storage.path={folder}", "dataset.val_fraction=0",
            f"loader.batch_size={BATCH}", f"seed={SEED}", "augment=as_is", "transform=draw",
            "loader=processes", f"loader.num_workers={workers}",
        ]
    )  # fmt: skip
    return build_loader(config, "train")


def data_loader(folder: Path, workers: int) -> Any:
    """torch.utils.data, shuffled."""
    from torch.utils.data import DataLoader

    return DataLoader(Records(), BATCH, shuffle=True, num_workers=workers)


def stateful(folder: Path, workers: int) -> Any:
    """StatefulDataLoader of torchdata."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Records(), BATCH, shuffle=True, num_workers=workers)


def web_dataset(folder: Path, workers: int) -> Any:
    """Eight tar shards, shuffled, in batches that workers make."""
    import webdataset as wds

    if not list(folder.glob("*.tar")):
        with wds.ShardWriter(f"{folder}/%02d.tar", maxcount=RECORDS // 8, verbose=0) as writer:
            for record in range(RECORDS):
                writer.write({"__key__": f"{record:03d}", "id.cls": record})
    urls = sorted(map(str, folder.glob("*.tar")))
    data = wds.WebDataset(urls, shardshuffle=100, seed=SEED).shuffle(32, seed=SEED).decode()
    data = data.map(lambda sample: drawn(sample["id.cls"])).batched(BATCH)
    return wds.WebLoader(data, batch_size=None, num_workers=workers)


def lit_data(folder: Path, workers: int) -> Any:
    """Optimised chunks, shuffled."""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import Cache

    if not (folder / "index.json").exists():
        cache = Cache(str(folder), chunk_size=RECORDS // 8)
        for record in range(RECORDS):
            cache[record] = record
        cache.done()
        cache.merge()

    class Drawn(StreamingDataset):
        def __getitem__(self, index: Any) -> dict[str, int]:
            return drawn(super().__getitem__(index))

    data = Drawn(str(folder), shuffle=True, seed=SEED)
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)


def mosaicml(folder: Path, workers: int) -> Any:
    """MDS shards, shuffled."""
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    if not (folder / "index.json").exists():
        with MDSWriter(out=str(folder), columns={"id": "int"}, size_limit=400) as writer:
            for record in range(RECORDS):
                writer.write({"id": record})

    class Drawn(StreamingDataset):
        def __getitem__(self, index: Any) -> dict[str, int]:
            return drawn(super().__getitem__(index)["id"])

    data = Drawn(local=str(folder), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    return StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)


def grain_dataset(folder: Path, workers: int) -> Any:
    """A MapDataset with a random map, in worker processes."""
    import grain

    def draw(record: int, rng: np.random.Generator) -> dict[str, int]:
        return {"id": record, "draw": int(rng.integers(1 << 30))}

    data: Any = grain.MapDataset.range(RECORDS).seed(SEED).shuffle().random_map(draw)
    options = grain.MultiprocessingOptions(num_workers=workers)
    return iter(data.batch(BATCH).to_iter_dataset().mp_prefetch(options))


OPEN: dict[str, Callable[[Path, int], Any]] = {
    "penstock": penstock,
    "DataLoader": data_loader,
    "StatefulDataLoader": stateful,
    "WebDataset": web_dataset,
    "LitData": lit_data,
    "MosaicML Streaming": mosaicml,
    "Grain": grain_dataset,
}


def epoch(tool: str, folder: Path, workers: int) -> Batches:
    """All batches of the first epoch."""
    seeded()
    return read(OPEN[tool](folder, workers), EPOCH)


def resumed(tool: str, folder: Path, workers: int) -> Batches | None:
    """The rest of an epoch that two workers began; None without a state."""
    seeded()
    loader = OPEN[tool](folder, 2)
    batches = iter(loader)
    read(batches, STOP)
    get = getattr(loader, "state_dict", None) or getattr(loader, "get_state", None)
    if get is None or tool == "WebDataset":
        return None
    state = get()
    del batches, loader
    seeded()
    loader = OPEN[tool](folder, workers)
    (getattr(loader, "load_state_dict", None) or loader.set_state)(state)
    return read(loader, EPOCH - STOP)


def _worker() -> int:
    """Return the id of a worker: a process of multiprocessing, or as ours are, another child."""
    known = [each.pid for each in active_children() if each.pid]
    files = Path("/proc/self/task").glob("*/children")
    return (known or [int(pid) for file in files for pid in file.read_text().split()])[0]


def after_a_kill(tool: str, folder: Path) -> str:
    """Kill one of two workers, and describe the rest of the epoch."""
    seeded()
    loader = OPEN[tool](folder, 2)
    batches = iter(loader)
    found = read(batches, 1)
    os.kill(_worker(), signal.SIGKILL)
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANGS_S)
    try:
        found += read(batches, EPOCH - 1)
    except Exception as error:
        return f"stops ({type(error).__name__})"
    finally:
        signal.alarm(0)
    return "continues" if found == epoch(tool, folder, 2) else "loses records"


def _hangs(*_: object) -> None:
    raise TimeoutError


def said(tool: str, folder: Path) -> list[str]:
    """The cells of a tool's row."""
    runs = [epoch(tool, folder, workers) for workers in (1, 2, 4)]
    records = [[ids for ids, _ in batches] for batches in runs]
    cells = [
        "yes" if all(each == records[0] for each in records) else "no",
        "yes" if all(each == runs[0] for each in runs) else "no",
    ]
    for workers in (2, 1):
        try:
            rest = resumed(tool, folder, workers)
        except Exception as error:
            cells.append(f"refused ({type(error).__name__})")
            continue
        same_records = rest is not None and [ids for ids, _ in rest] == records[1][STOP:]
        same = rest == runs[1][STOP:]
        cells.append(
            "no state" if rest is None else "yes" if same else "records" if same_records else "no"
        )
    return [*cells, after_a_kill(tool, folder)]


def main(names: list[str]) -> None:
    """Print the table of the tools that are installed."""
    print("| tool | same records | and draws | resumes, 2 workers | and with 1 | a worker killed |")
    print("|---|---|---|---|---|---|")
    for tool, module in TOOLS.items():
        if names and tool not in names:
            continue
        try:
            if tool == "MosaicML Streaming":
                import_module("rows.mosaicml")  # lets it import without its own torchvision
            import_module(module)
        except ImportError as error:
            print(f"| {tool} | not installed: {error} |")
            continue
        with tempfile.TemporaryDirectory() as folder:
            print(f"| {tool} | {' | '.join(said(tool, Path(folder)))} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
