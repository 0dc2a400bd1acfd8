"""Real configurations by short names, and the hashes of their batches."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import psutil

from penstock import build_loader, compose, fit
from tests.digests import batch_digest, row_digests
from tests.waiting import wait_until

DATASETS = ("image_folder", "lmdb", "webdataset", "memmap", "eager", "torch", "mix")
PACKED = ("lmdb", "webdataset", "memmap")
SAMPLERS = {
    "sequential": ["sampler=sequential"],
    "random": ["sampler=random"],
    "weighted": ["sampler=weighted", "sampler.num_samples=53"],
    "without": ["sampler=weighted", "sampler.replacement=false"],
    "identity": ["sampler=identity", "sampler.images_per_identity=2"],
    "balanced": ["sampler=balanced_batch", "sampler.classes=3", "sampler.num_batches=7"],
    "infinite": ["sampler=infinite", "sampler.steps=7"],
    "inference": ["sampler=inference"],
    "token_budget": ["sampler=token_budget", "sampler.column=label", "sampler.max_tokens=11"],
    "packed": ["sampler=packed", "sampler.column=label", "sampler.max_tokens=8"],
    "length_bucket": ["sampler=length_bucket", "sampler.column=label", "sampler.window=3"],
    "shard_shuffle": ["sampler=shard_shuffle", "sampler.window=2", "sampler.shard_records=7"],
    "torch": ["sampler=torch", "sampler.target=torch.utils.data.RandomSampler"],
    "mix": [],
}
OF_SOURCES = ("sequential", "random", "weighted", "without", "inference", "shard_shuffle", "torch")
COLLATES = {
    "stack": ["collate=stack"],
    "list": ["collate=list", "collate.stacked=[]"],
    "pad": ["collate=pad", "collate.fields={image: 2}"],
    "nested": ["collate=nested", "collate.rules={image: list}"],
}
SMALL = ["augment.image_size=20"]
AUGMENTS = {
    "none": ["augment=none", *SMALL],
    "light": ["augment=light", *SMALL],
    "imagenet": ["augment=imagenet", *SMALL, "augment.eval_size=24"],
    "strong": ["augment=strong", *SMALL, "augment.eval_size=24"],
    "ragged": ["augment=light", "augment.train.crop=null"],
}
IMPORTS = "imports=[tests.laws.components]"
WITH_TORCH = "imports=[tests.laws.torch_components]"
NOISE = [WITH_TORCH, "augment.train.noise={_target_: transform/laws_global_noise}"]
LOADER = ["loader.batch_size=6", "loader.drop_last=false", "loader.max_error_rate=1"]
INLINE = {"engine": "inline", "num_workers": 0}
ENGINES = ("threads", "processes", "torch", "default")


def way(engine: str, num_workers: int = 2, **changes: Any) -> dict[str, Any]:
    """Return loader settings for one of the engines."""
    chosen = None if engine == "default" else engine
    return {"engine": chosen, "num_workers": num_workers, **changes}


def overrides(
    photos: Path,
    packed: Path | None = None,
    *,
    dataset: str = "image_folder",
    sampler: str = "random",
    collate: str = "stack",
    augment: str = "light",
) -> list[str]:
    """Return the overrides that a user types for this content."""
    order = SAMPLERS[sampler]
    if "mix" in (dataset, sampler):
        data = _mixed(photos, packed)
        order = [f"dataset.sources.photos.{each}" for each in order if sampler in OF_SOURCES]
    elif dataset == "torch":
        data = ["dataset=torch", "dataset.target=tests.laws.torch_components.Photos"]
        data += [f"dataset.args={{root: {photos}/train}}", "dataset.val_fraction=0"]
    else:
        path = packed / dataset if packed and dataset in PACKED else photos
        data = [f"dataset={dataset}", f"dataset.storage.path={path}"]
    return [IMPORTS, *data, *order, *COLLATES[collate], *AUGMENTS[augment], *LOADER]


def _mixed(photos: Path, packed: Path | None) -> list[str]:
    """Return a mix of two storages of the same photographs; a sampler draws from the first."""
    second, path = ("lmdb", packed / "lmdb") if packed else ("eager", photos)
    return [
        "dataset=mix",
        "dataset.length=47",
        "dataset.sources.photos.dataset=image_folder",
        f"dataset.sources.photos.dataset.storage.path={photos}",
        "dataset.sources.photos.weight=3",
        f"dataset.sources.packed.dataset={second}",
        f"dataset.sources.packed.dataset.storage.path={path}",
    ]


def loader_of(config: dict[str, Any], split: Any = "train", **changes: Any) -> Any:
    """Build the loader of `config`, with changes to `loader`, `rank`, `world_size` or `device`."""
    names = ("rank", "world_size", "device")
    arguments = {name: changes.pop(name) for name in names if name in changes}
    if changes.get("engine", config["loader"]["engine"]) != "torch":
        changes["multiprocessing_context"] = None
    changed = {**config, "loader": {**config["loader"], **changes}}
    return build_loader(changed, split, **arguments)


def fed(config: dict[str, Any], loader: Any, split: Any = "train", device: Any = None) -> Any:
    """Return the batches of a loader as a model gets them, by the loop of docs/own.md."""
    from penstock.pipeline.build import build_device_transforms
    from penstock.pipeline.loader.device.queue import DeviceQueue

    return DeviceQueue(loader, "cpu", build_device_transforms(config, split, device))


def digests(
    config: dict[str, Any], *, epochs: int = 2, split: str = "train", **changes: Any
) -> list[list[str]]:
    """Return the hash of every batch, by epoch."""
    with loader_of(config, split, **changes) as loader:
        return [[batch_digest(batch) for batch in loader] for _ in range(epochs)]


def rows(config: dict[str, Any], **changes: Any) -> list[list[str]]:
    """Return the hashes of the valid rows of every batch of epoch 0."""
    with loader_of(config, **changes) as loader:
        return [row_digests(batch) for batch in loader]


def joined_rows(config: dict[str, Any], world_size: int, **changes: Any) -> list[list[str]]:
    """Return the rows of every batch of epoch 0, those of rank 0 first."""
    ranks = [rows(config, rank=r, world_size=world_size, **changes) for r in range(world_size)]
    return [[*chain(*parts)] for parts in zip(*ranks, strict=True)]


def rest(loader: Any, count: int | None = None) -> list[str]:
    """Return the hashes of the remaining batches of an epoch, or of `count` of them."""
    return [batch_digest(batch) for batch in islice(loader, count)]


def seen_in(folder: Path) -> str:
    """Return an override: each process that transforms a sample leaves its id in `folder`."""
    return f"augment.train.seen={{_target_: transform/laws_seen, folder: '{folder}'}}"


def kill_worker(folder: Path, *, spared: Sequence[int]) -> int:
    """Kill a process that has transformed samples, other than this one; return its id.

    Args:
        folder: The folder of `seen_in`.
        spared: Processes killed before.
    """

    def alive() -> Iterator[int]:
        known = (int(file.name) for file in folder.iterdir())
        return (p for p in known if p not in (os.getpid(), *spared) and psutil.pid_exists(p))

    wait_until(lambda: next(alive(), None), "no other process computes")
    pid = next(alive())
    os.kill(pid, signal.SIGKILL)
    return pid


TINY_RUN = [
    "model.width=8", "trainer.device=cpu", "trainer.num_threads=1", "trainer.progress=off",
    "loader=inline", "trainer.resume=auto",
]  # fmt: skip


def run_of(given: Sequence[str], outputs: Path, *, steps: int) -> str:
    """Train to a step, from the newest equal run in `outputs` if any; return the run's folder."""
    more = [*TINY_RUN, f"outputs={outputs}", f"trainer.max_steps={steps}"]
    folder: str = fit(compose([*given, *more]))["run_dir"]
    return folder
