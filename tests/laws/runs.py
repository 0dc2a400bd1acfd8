"""Real configurations by short names, and the hashes of what they give."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from penstock import build_loader
from penstock.pipeline.loader.digest import batch_digest, row_digests

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
LOADER = ["loader.batch_size=6", "loader.drop_last=false", "loader.max_error_rate=1"]
INLINE = {"engine": "inline", "num_workers": 0}
ENGINES = ("threads", "processes", "torch", "auto")


def way(engine: str, num_workers: int = 2, **changes: Any) -> dict[str, Any]:
    """Settings of the loader under which one of the engines that users get computes batches."""
    return {"engine": engine, "num_workers": num_workers, **changes}


def overrides(
    photos: Path,
    packed: Path | None = None,
    *,
    dataset: str = "image_folder",
    sampler: str = "random",
    collate: str = "stack",
    augment: str = "light",
) -> list[str]:
    """What a user would type for this content."""
    order = SAMPLERS[sampler]
    if "mix" in (dataset, sampler):
        data = _mixed(photos, packed)
        order = [f"dataset.sources.photos.{each}" for each in order if sampler in OF_SOURCES]
    elif dataset == "torch":
        data = ["dataset=torch", "dataset.target=tests.laws.components.Photos"]
        data += [f"dataset.args={{root: {photos}/train}}", "dataset.val_fraction=0"]
    else:
        path = packed / dataset if packed and dataset in PACKED else photos
        data = [f"dataset={dataset}", f"dataset.storage.path={path}"]
    return [IMPORTS, *data, *order, *COLLATES[collate], *AUGMENTS[augment], *LOADER]


def _mixed(photos: Path, packed: Path | None) -> list[str]:
    """A mix of two storages with the same photographs, of which the first is drawn by a sampler."""
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
    """The config's loader, with changes to `loader`, `rank` or `world_size`."""
    ranks = {name: changes.pop(name) for name in ("rank", "world_size") if name in changes}
    changed = {**config, "loader": {**config["loader"], **changes}}
    return build_loader(changed, split, **ranks)


def digests(
    config: dict[str, Any], *, epochs: int = 2, split: str = "train", **changes: Any
) -> list[list[str]]:
    """Hash of every batch, by epoch."""
    with loader_of(config, split, **changes) as loader:
        return [[batch_digest(batch) for batch in loader] for _ in range(epochs)]


def rows(config: dict[str, Any], **changes: Any) -> list[list[str]]:
    """Hashes of the valid rows of every batch of epoch 0."""
    with loader_of(config, **changes) as loader:
        return [row_digests(batch) for batch in loader]


def rest(loader: Any, count: int | None = None) -> list[str]:
    """Hashes of the batches that a loader still gives in its epoch, or `count` of them."""
    return [batch_digest(batch) for batch in islice(loader, count)]
