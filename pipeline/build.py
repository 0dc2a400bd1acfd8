"""Build data, loaders and loggers from a resolved config that `pipeline.config` has checked.

`learning.building` builds models and tasks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sized
from dataclasses import replace
from itertools import takewhile
from math import lcm
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.contracts import (
    BatchTransform,
    Callback,
    Dataset,
    Logger,
    Sampler,
    Source,
    Storage,
    StreamDataset,
    Transform,
    abilities_of,
)
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.libraries import resolve_class, resolve_target
from penstock.pipeline.config.places import TARGETS
from penstock.pipeline.config.schema import refuse_library_mistakes
from penstock.pipeline.instantiate import NO_ARGUMENTS, Config, build, build_nested
from penstock.pipeline.mixes import said_of_source, sources_of

if TYPE_CHECKING:
    from penstock.pipeline.loader.loader import Loader

Split = Literal["train", "val", "test"]
Classes = Mapping[str, tuple[str, ...]]

_NOT_PIXELS = frozenset(
    "_target_ storage source cache annotations val_fraction val_path test_path test_args".split()
)
"""Arguments of a dataset that change no pixels."""


def build_loader(
    config: Config,
    split: Split = "train",
    *,
    rank: int = 0,
    world_size: int = 1,
    run_dir: Path | None = None,
    sampler: Sampler | None = None,
    group: int = 1,
    device: Any = None,
    limit: int | None = None,
    classes: Classes = MappingProxyType({}),
    located: bool = False,
) -> Loader:
    """Build a loader of batches for any training loop.

    Args:
        config: A checked config, as `penstock.compose` returns.
        split: ``train`` (the configured sampler), ``val`` or ``test`` (every sample once, in
            order).
        rank: This process among the processes that share each batch.
        world_size: Number of these processes.
        run_dir: Folder of ``bad_samples.csv``; None writes no file.
        sampler: Replaces the configured sampler of ``train``.
        group: Positions to keep on one rank, in addition to the groups of steps.
        device: Device of the training loop. On the CPU, workers run the first steps of
            ``augment.device`` that only move pixels; `build_device_transforms` with the same device
            leaves them out. None: workers run none of them.
        limit: Batches of ``val``, spread evenly over the records; None: all. A stream gives its
            first.
        classes: Known class names by field, such as from a run.
        located: Add the place of each image in its file to batches, as ``file_size`` and
            ``to_image``; see `LocatedStack`.

    Returns:
        An iterable of batches: dicts of tensors with ``image`` uint8 [B, H, W, C], ``label``,
        ``index``, ``position`` and ``epoch`` int64 [B], ``valid`` bool [B], and ``key``, a list of
        strings.

    Raises:
        ValueError: Data is missing or does not fit the config.
    """
    from penstock.pipeline.loader.loader import Loader
    from penstock.pipeline.samplers.random import SequentialSampler

    if world_size > 1 and settle(config) != config:
        raise ValueError(
            f"dataset.source: each of {world_size} ranks would look up the end of the source by "
            f"itself, at different times; call pipeline.build.settle(config) on one rank and give "
            f"its result to all"
        )
    dataset = build_dataset(config, split, classes, located=located)
    if split == "train" and isinstance(dataset, Sized) and not len(dataset):
        raise ValueError(
            f"dataset: no sample to train on; got dataset.val_fraction="
            f"{config['dataset'].get('val_fraction')}, check it and the data"
        )
    settings = build(config["loader"])
    if split == "train":
        sampler = sampler or build_sampler(config, dataset)
    elif limit is None or isinstance(dataset, StreamDataset):
        sampler = None
    else:
        sampler = SequentialSampler(len(dataset), count=limit * settings.batch_size_of(split))
    steps = build_device_transforms(config, split)
    groups = [abilities_of(each, BatchTransform).group for each in steps]
    return Loader(
        dataset,
        sampler=sampler,
        collate=build(config["collate"]),
        settings=settings,
        seed=config["seed"],
        split=split,
        rank=rank,
        world_size=world_size,
        imports=tuple(config["imports"]),
        group=lcm(group, *groups),
        identity=_resume_identity(config, split, sampler, dataset),
        bad_samples_path=run_dir / "bad_samples.csv" if run_dir else None,
        steps=_divided(config, split, device)[0],
    )


def _resume_identity(
    config: Config, split: str, sampler: Sampler | None, dataset: Any
) -> dict[str, Any]:
    """Return plain values that identify the order of records and their processing.

    ``sampler`` includes the sources of a mix, without values that a fingerprint covers; ``pixels``
    has decoding, augmentation and collate.
    """
    from penstock.pipeline.loader.loader import classes_of
    from penstock.pipeline.samplers.mix import MixSampler

    def order_of(node: Config, sampler: Sampler | None) -> dict[str, Any]:
        covered = () if sampler is None else sampler.by_content
        return {name: value for name, value in node.items() if name not in covered}

    def decoding(dataset: Config) -> dict[str, Any]:
        return {name: value for name, value in dataset.items() if name not in _NOT_PIXELS}

    augment, node = config["augment"], config["dataset"]
    order, decode = order_of(config["sampler"], sampler), decoding(node)
    if sources := sources_of(config):
        samplers = sampler.samplers if isinstance(sampler, MixSampler) else {}
        order["length"] = node["length"]
        order["sources"] = {
            name: {
                "weight": node["sources"][name]["weight"],
                "sampler": order_of(source["sampler"], samplers.get(name)),
            }
            for name, source in sources.items()
        }
        decode = {name: decoding(source["dataset"]) for name, source in sources.items()}
    targets = {name: augment[name] for name in TARGETS if augment.get(name)}
    if keypoints := targets.get("keypoints"):
        swaps = build(keypoints).settled(classes_of(dataset, "keypoints")).swaps
        targets["keypoints"] = {**keypoints, "swaps": swaps}
    steps = augment["train" if split == "train" else "eval"]
    pixels = {"decode": decode, "augment": steps, **targets, "collate": config["collate"]}
    return {"sampler": order, "pixels": pixels}


def build_dataset(
    config: Config,
    split: Split,
    classes: Classes = MappingProxyType({}),
    *,
    located: bool = False,
) -> Dataset | StreamDataset:
    """Build the samples of a split: storage, decoding and augmentation.

    Args:
        config: A checked config.
        split: The split.
        classes: Known class names by field, see `StorageRecipe`.
        located: Add the place of each image in its file to samples, see `LocatedStack`.

    Raises:
        ConfigError: A class of a library is missing or takes other arguments.
    """
    register_components(config["imports"])
    refuse_library_mistakes(config)
    return _build_dataset(config, split, classes, located=located)


def _build_dataset(
    config: Config, split: Split, classes: Classes, *, located: bool
) -> Dataset | StreamDataset:
    from penstock.datasets.files.clients import set_retry_s
    from penstock.datasets.partners import check_gives_partners

    node, sources = dict(config["dataset"]), sources_of(config)
    make = resolve_target(node.pop("_target_"))
    transform: Any = build_transform(config, split, located=located)
    arguments: dict[str, Any] = {}
    for key, value in node.items():
        if key == "sources" and sources:
            arguments[key] = {}
            for name, part in sources.items():
                with said_of_source(name):
                    arguments[key][name] = _build_dataset(part, split, classes, located=located)
            # One limit per process, which reads all sources.
            set_retry_s(max(part["dataset"].get("retry_s", 0) for part in sources.values()))
        elif key in ("storage", "source"):
            arguments[key] = replace(_recipe(value, config), classes=classes)
        elif key == "target":
            arguments[key] = resolve_class(value, bases=("torch.utils.data.Dataset",))
        else:
            arguments[key] = build_nested(value)
    dataset = make(**arguments, transform=transform, seed=config["seed"], split=split)
    check_gives_partners(dataset, transform, split=split)
    if config["augment"].get("keypoints"):
        from penstock.pipeline.loader.loader import classes_of

        transform.name_keypoints(classes_of(dataset, "keypoints"))
    return dataset


def _recipe(node: Config, config: Config) -> Any:
    """Make the recipe of a storage or source, and the demo set that it names."""
    from penstock.datasets.demo import made_here
    from penstock.datasets.records.splits import StorageRecipe

    arguments = {k: build_nested(v) for k, v in node.items() if k not in NO_ARGUMENTS}
    path, name = arguments.get("path"), node["_target_"].rpartition("/")[2]
    if isinstance(path, str) and (made := made_here(path, name, Path(config["data_dir"]))):
        arguments["path"] = str(made)
    return StorageRecipe(resolve_target(node["_target_"]), arguments)


def _recipe_of_splits(config: Config) -> Any:
    """Make the recipe of a data set's storage or source, with the paths of its splits."""
    node = config["dataset"]
    names = ("val_path", "test_path", "max_record_bytes", "retry_s")
    given = {name: node[name] for name in names if name in node}
    return replace(_recipe(node.get("storage") or node["source"], config), **given)


def splits_of(config: Config) -> frozenset[str]:
    """Return the splits that the data itself has; empty if keys decide who validates."""
    if sources := sources_of(config):
        return frozenset.intersection(*map(splits_of, sources.values()))
    node = config["dataset"]
    if node.get("storage") or node.get("source"):
        return frozenset(_recipe_of_splits(config).parts())
    # A torch dataset or a user's type.
    return frozenset(split for split in ("val", "test") if node.get(f"{split}_args") is not None)


def settle(config: Config) -> Config:
    """Return a config with the values that a stream's source finds when it is built, see `Source`.

    Every process, and a resumed run, then reads the same data.
    """
    node = config["dataset"].get("source")
    if node is None:
        return config
    register_components(config["imports"])
    recipe = _recipe_of_splits(config)
    kind = recipe.make
    if not (inspect.isclass(kind) and issubclass(kind, Source)) or kind.settled is Source.settled:
        return config
    others = [{"path": part} for split, part in recipe.parts().items() if split != "train"]
    found: dict[str, dict[Any, Any]] = {}
    for changes in ({}, *others):
        for name, value in recipe.open(**changes).settled().items():
            found[name] = {**found.get(name, {}), **value}
    return {**config, "dataset": {**config["dataset"], "source": {**node, **found}}}


def open_storage(config: Config, split: Split) -> Storage:
    """Open the records of a split without decoding, for packing."""
    return storage_opener(config, split)()


def storage_opener(config: Config, split: Split) -> Callable[[], Storage]:
    """Return a function that opens the records of a split; it pickles."""
    from penstock.datasets.records.splits import open_split

    register_components(config["imports"])
    node = config["dataset"]
    if "storage" not in node:
        what = f"{node['_target_']} reads no single storage"
        raise ValueError(f"{what}; use a single data set, such as dataset=image_folder")
    annotations = build(node["annotations"]) if node.get("annotations") else None
    more = {"split": split, "val_fraction": node["val_fraction"], "annotations": annotations}
    return functools.partial(open_split, _recipe_of_splits(config), **more)


def build_sampler(config: Config, dataset: Any) -> Any:
    """Build the configured sampler of a split; return None for a stream, which sets the order."""
    from penstock.datasets.map_dataset import MapDataset
    from penstock.pipeline.samplers.mix import MixedSource, Mixture

    if isinstance(dataset, StreamDataset):
        return None
    storage = dataset.storage if isinstance(dataset, MapDataset) else None
    node, sources = dict(config["sampler"]), []
    if node["_target_"] == "sampler/torch":
        node["target"] = resolve_class(node["target"], bases=("torch.utils.data.Sampler",))
    for name, part in sources_of(config).items():
        weight, own = config["dataset"]["sources"][name]["weight"], dataset.sources[name]
        with said_of_source(name):
            drawn = build_sampler(part, own) if weight and len(own) else None
        sources.append(MixedSource(name, len(own), weight, drawn))
    return build(
        node,
        n=len(dataset),
        index=dataset.index,
        seed=config["seed"],
        batch_size=config["loader"]["batch_size"],
        mixed=Mixture(tuple(sources), config["dataset"]["length"]) if sources else None,
        column_of=None if storage is None else functools.partial(_column_of, storage),
        shards=None if storage is None else storage.shards,
    )


def _column_of(storage: Storage, name: str) -> Any:
    """Read a numeric field that the index lacks, [n]; return None for other values.

    The values are cached on the machine for each state of the data. Without columns, the storage
    reads whole records.
    """
    import numpy as np

    from penstock.core.sample import Record
    from penstock.datasets.records.indexed_storage import content_mark
    from penstock.datasets.records.table import cached_selection

    def numbers_at(rows: range) -> Any:
        taken = storage.take(np.array(rows), {name}) or {}
        if name in taken:
            values = taken[name].tolist()
        else:
            records = storage.read(np.array(rows))
            values = [r.fields.get(name) if isinstance(r, Record) else None for r in records]
        numbers = [v if isinstance(v, int | float | np.number) else np.nan for v in values]
        return np.array(numbers, np.float64)

    def read() -> Any:
        count = len(storage)
        parts = [numbers_at(range(n, min(n + 256, count))) for n in range(0, count, 256)]
        return np.concatenate(parts)

    if np.isnan(numbers_at(range(min(len(storage), 8)))).all():
        return None
    mark = content_mark(storage)
    return read() if mark is None else cached_selection(f"{mark} {name}", read)


def build_transform(config: Config, split: Split, *, located: bool = False) -> Transform:
    """Build the augmentation stack of a split: ``augment.train`` or ``augment.eval``."""
    from penstock.transforms.cpu.located import LocatedStack
    from penstock.transforms.cpu.stack import Stack

    augment = config["augment"]
    steps = augment["train" if split == "train" else "eval"] or {}
    targets = {name: build(augment[name]) for name in TARGETS if augment.get(name)}
    kind = LocatedStack if located and any(steps.values()) else Stack
    return kind(steps, build_step=build, **targets)


def build_device_transforms(
    config: Config, split: Split, device: Any = None
) -> list[BatchTransform]:
    """Build the steps of ``augment.device`` for a split, in order.

    Steps receive the seed, their name and the split, so that random steps leave evaluation alone.
    `device` is the `device` of `build_loader`, whose workers' steps are left out.
    """
    return _divided(config, split, device)[1]


def _divided(
    config: Config, split: Split, device: Any
) -> tuple[BatchTransform | None, list[BatchTransform]]:
    """Build the steps of workers, or None, and the steps of the device.

    On the CPU, workers run the first steps that only move pixels, to save the training loop's time.
    Any other device runs all steps.
    """
    from penstock.transforms.cpu.stack import ordered_steps
    from penstock.transforms.device.steps import DeviceStep, StepChain

    nodes = ordered_steps(config["augment"].get("device") or {})
    seed = config["seed"]
    steps = [build(node, seed=seed, split=split, step=name) for name, node in nodes.items()]
    movers = takewhile(lambda step: isinstance(step, DeviceStep) and step.moves_only, steps)
    first = list(movers) if str(device).partition(":")[0] == "cpu" else []
    return StepChain(first) if first else None, steps[len(first) :]


build_settings = build
"""Builds typed settings, such as ``config["trainer"]``."""


def build_loggers(config: Config, run_dir: Path) -> list[Logger]:
    """Build the loggers, in the order of the config."""
    register_components(config["imports"])
    nodes = [node for node in config["logger"].values() if node]
    return [build(node, run_dir=run_dir, config=config) for node in nodes]


def build_callbacks(config: Config, **known: Any) -> dict[str, Callback]:
    """Build the callbacks by name; `known` are values that they may request."""
    nodes = {name: node for name, node in (config.get("callback") or {}).items() if node}
    return {name: build(node, **known) for name, node in nodes.items()}
