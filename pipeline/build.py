"""Build data, loaders and loggers from a resolved config that `pipeline.config` has checked.

`learning.building` builds models and tasks.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import replace
from itertools import takewhile
from math import lcm
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.contracts import (
    BatchTransformCapabilities,
    SamplerCapabilities,
    Source,
    StreamDataset,
    capabilities_of,
)
from penstock.datasets.files.listings import looking_once
from penstock.pipeline.config.components import module_of, register_components
from penstock.pipeline.config.libraries import (
    resolve_class,
    resolve_target,
)
from penstock.pipeline.config.places import TARGETS
from penstock.pipeline.config.schema import refuse_library_mistakes
from penstock.pipeline.instantiate import NO_ARGUMENTS, Config, build, build_nested
from penstock.pipeline.mixes import said_of_source, sources_of

if TYPE_CHECKING:
    from penstock.core.contracts import (
        BatchTransform,
        Callback,
        Dataset,
        Logger,
        Sampler,
        Storage,
        Transform,
    )
    from penstock.pipeline.loader.loader import Loader
    from penstock.pipeline.samplers.mix import Mixture


Split = Literal["train", "val", "test"]
Classes = Mapping[str, tuple[str, ...]]

_NOT_PIXELS = frozenset(
    (
        "_target_ storage source cache annotations val_fraction val_path test_path test_args "
        "worker_init_fn"
    ).split()
)
"""Arguments of a dataset that change no pixels."""


def resolve_function(path: str, modules: Collection[str]) -> Callable[..., Any]:
    """Import the function at a dotted path; raise ValueError unless one of `modules` defines it."""
    module_name, _, name = path.rpartition(".")
    if module_name not in modules:
        raise ValueError(
            f"{path!r}: functions are taken from the data set's module and those named in "
            f"`imports` alone ({', '.join(sorted(modules)) or 'none'}); add "
            f"imports=[{module_name or '<module>'}]"
        )
    found = getattr(importlib.import_module(module_name), name, None)
    if not isinstance(found, types.FunctionType):
        raise ValueError(f"{path!r}: no function {name!r} in {module_name}")
    if found.__module__ not in modules:
        raise ValueError(f"{path!r} is defined in {found.__module__}; name that in `imports`")
    return found


@looking_once()
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

    node = dict(config["dataset"])
    make = resolve_target(node.pop("_target_"))
    arguments: dict[str, Any] = {
        "transform": build_transform(config, split, located=located),
        "seed": config["seed"],
        "split": split,
    }
    for key, value in node.items():
        if key == "sources" and sources_of(config):
            arguments[key] = {}
            for name, part in sources_of(config).items():
                with said_of_source(name):
                    arguments[key][name] = _build_dataset(part, split, classes, located=located)
            retries = [part["dataset"].get("retry_s", 0) for part in sources_of(config).values()]
            set_retry_s(max(retries))  # one limit per process, which reads all sources
        elif key in ("storage", "source"):
            recipe = _storage_recipe(value, Path(config["data_dir"]))
            arguments[key] = replace(recipe, classes=classes)
        elif key == "target":
            arguments[key] = resolve_class(value, bases=("torch.utils.data.Dataset",))
        elif key in ("collate_fn", "worker_init_fn") and value is not None:
            own = map(module_of, config["imports"])
            modules = {str(node["target"]).rpartition(".")[0], *own}
            arguments[key] = resolve_function(value, modules)
        else:
            arguments[key] = build_nested(value)
    dataset = make(**arguments)
    check_gives_partners(dataset, arguments["transform"], split=split)
    if config["augment"].get("keypoints"):
        from penstock.pipeline.loader.loader import classes_of

        arguments["transform"].name_keypoints(classes_of(dataset, "keypoints"))
    return dataset


def settle(config: Config) -> Config:
    """Return a config with the values that a stream's source finds when it is built, see `Source`.

    Every process, and a resumed run, then reads the same data.
    """
    node = config["dataset"].get("source")
    if node is None:
        return config
    register_components(config["imports"])
    recipe = _storage_recipe(node, Path(config["data_dir"]))
    make = recipe.make
    settles = inspect.isclass(make) and issubclass(make, Source)
    if not settles or make.settled is Source.settled:
        return config
    names = ("val_path", "test_path", "retry_s")
    given = {name: config["dataset"][name] for name in names if name in config["dataset"]}
    recipe = replace(recipe, **given)
    found: dict[str, dict[Any, Any]] = {}
    others = [{"path": part} for split, part in recipe.parts().items() if split != "train"]
    for changes in ({}, *others):
        source: Any = recipe.open(**changes)
        for name, value in source.settled().items():
            found[name] = {**found.get(name, {}), **value}
    return {**config, "dataset": {**config["dataset"], "source": {**node, **found}}}


def splits_of(config: Config) -> frozenset[str]:
    """Return the splits that the data itself has; empty if keys decide who validates."""
    if sources := sources_of(config):
        return frozenset.intersection(*map(splits_of, sources.values()))
    node = config["dataset"]
    part = node.get("storage") or node.get("source")
    if part is None:  # a torch dataset or a user's type
        return frozenset(
            split for split in ("val", "test") if node.get(f"{split}_args") is not None
        )
    recipe = _storage_recipe(part, Path(config["data_dir"]))
    given = {name: node[name] for name in ("val_path", "test_path", "retry_s") if name in node}
    return frozenset(replace(recipe, **given).parts())


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
    recipe = _storage_recipe(node["storage"], Path(config["data_dir"]))
    names = ("val_path", "test_path", "max_record_bytes", "retry_s")
    recipe = replace(recipe, **{name: node[name] for name in names if name in node})
    annotations = build(node["annotations"]) if node.get("annotations") else None
    return functools.partial(
        open_split, recipe, split=split, val_fraction=node["val_fraction"], annotations=annotations
    )


def _storage_recipe(node: Config, data_dir: Path) -> Any:
    """Make the recipe of a storage or source, and the demo set that it names."""
    from penstock.datasets.demo import made_here
    from penstock.datasets.records.splits import StorageRecipe

    arguments = {k: build_nested(v) for k, v in node.items() if k not in NO_ARGUMENTS}
    path, name = arguments.get("path"), node["_target_"].rpartition("/")[2]
    if isinstance(path, str) and (made := made_here(path, name, data_dir)) is not None:
        arguments["path"] = str(made)
    return StorageRecipe(resolve_target(node["_target_"]), arguments)


def build_transform(config: Config, split: Split, *, located: bool = False) -> Transform:
    """Build the augmentation stack of a split: ``augment.train`` or ``augment.eval``."""
    from penstock.transforms.cpu.located import LocatedStack
    from penstock.transforms.cpu.stack import Stack, build_stack

    augment = config["augment"]
    steps = augment["train" if split == "train" else "eval"]
    targets = {name: build(augment[name]) for name in TARGETS if augment.get(name)}
    kind = LocatedStack if located and any((steps or {}).values()) else Stack
    return build_stack(steps or {}, build_step=build, kind=kind, **targets)


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
    on_device = build_device_transforms(config, split)
    groups = [capabilities_of(each, BatchTransformCapabilities).group for each in on_device]
    settings = build(config["loader"])
    if split != "train":
        sampler = _spread(dataset, limit, settings.batch_size_of(split))
    elif sampler is None:
        sampler = build_sampler(config, dataset)
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


def _resume_identity(config: Config, split: str, sampler: Any, dataset: Any) -> dict[str, Any]:
    """Return plain values that identify the order of records and their processing.

    ``sampler`` includes the sources of a mix, without values that a fingerprint covers; ``pixels``
    has decoding, augmentation and collate.
    """
    from penstock.pipeline.loader.loader import classes_of

    augment, sources = config["augment"], sources_of(config)
    order = {**config["sampler"]}
    decode: dict[str, Any] = _decoding(config["dataset"])
    if sources:
        sampler_of = capabilities_of(sampler, SamplerCapabilities).sampler_of
        order["length"] = config["dataset"]["length"]
        order["sources"] = {
            name: {
                "weight": config["dataset"]["sources"][name]["weight"],
                "sampler": _order(source["sampler"], sampler_of and sampler_of(name)),
            }
            for name, source in sources.items()
        }
        decode = {name: _decoding(source["dataset"]) for name, source in sources.items()}
    targets = {name: augment[name] for name in TARGETS if augment.get(name)}
    if node := targets.get("keypoints"):
        swaps = build(node).settled(classes_of(dataset, "keypoints")).swaps
        targets["keypoints"] = {**node, "swaps": swaps}
    return {
        "sampler": _order(order, sampler),
        "pixels": {
            "decode": decode,
            "augment": augment["train" if split == "train" else "eval"],
            **targets,
            "collate": config["collate"],
        },
    }


def _decoding(dataset: Config) -> dict[str, Any]:
    return {name: value for name, value in dataset.items() if name not in _NOT_PIXELS}


def _order(node: Config, sampler: Any) -> dict[str, Any]:
    by_content = capabilities_of(sampler, SamplerCapabilities).by_content
    return {name: value for name, value in node.items() if name not in by_content}


def _spread(dataset: Any, limit: int | None, batch_size: int) -> Any:
    """Return a sampler of `limit` batches spread over all records, or None for every record."""
    from penstock.pipeline.samplers.sequential import SequentialSampler

    if limit is None or isinstance(dataset, StreamDataset):
        return None
    return SequentialSampler(len(dataset), count=limit * batch_size)


def build_sampler(config: Config, dataset: Any) -> Any:
    """Build the configured sampler of a split; return None for a stream, which sets the order."""
    if isinstance(dataset, StreamDataset):
        return None
    node = dict(config["sampler"])
    if node["_target_"] == "sampler/torch":
        node["target"] = resolve_class(node["target"], bases=("torch.utils.data.Sampler",))
    sampler = build(
        node,
        n=len(dataset),
        index=dataset.index,
        seed=config["seed"],
        batch_size=config["loader"]["batch_size"],
        mixed=_mixture(config, dataset),
        column_of=functools.partial(_column_of, dataset),
        shards=None if (storage := _storage_of(dataset)) is None else storage.shards,
    )
    _tell_cache(dataset, sampler)
    return sampler


def _storage_of(dataset: Any) -> Storage | None:
    """Return the storage of a data set, or None."""
    from penstock.datasets.map_dataset import MapDataset

    return dataset.storage if isinstance(dataset, MapDataset) else None


def _tell_cache(dataset: Any, sampler: Any) -> None:
    """Pass the ranks of records by expected access count to the cache of a single dataset."""
    import numpy as np

    from penstock.pipeline.epoch_orders import StoredTable, digest_of

    storage, uses = _storage_of(dataset), capabilities_of(sampler, SamplerCapabilities).uses
    if storage is None or uses is None:
        return
    expected = uses()

    def fill(ranks: Any) -> None:
        ranks[np.argsort(-expected, kind="stable")] = np.arange(len(expected))

    name = f"table-ranks-{digest_of(expected)}"
    table = StoredTable(name, np.int64, len(expected), fill, what="table of uses")
    storage.keep_most_used(table)


def _column_of(dataset: Any, name: str) -> Any:
    """Read a numeric field that the index lacks, [n]; return None for other values.

    The values are cached on the machine for each state of the data. Without columns, the storage
    reads whole records.
    """
    import numpy as np

    from penstock.core.sample import Record
    from penstock.datasets.map_dataset import MapDataset
    from penstock.datasets.records.index import cached_selection
    from penstock.datasets.records.indexed_storage import content_mark

    if not isinstance(dataset, MapDataset):
        return None
    storage: Storage = dataset.storage

    def values_at(rows: Any) -> list[Any]:
        taken = storage.take(rows, {name})
        if taken and name in taken:
            return taken[name].tolist()
        records = storage.read(rows)
        return [each.fields.get(name) if isinstance(each, Record) else np.nan for each in records]

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float | np.number)

    def read() -> Any:
        chunks = (range(n, min(n + 256, len(storage))) for n in range(0, len(storage), 256))
        found = [value for rows in chunks for value in values_at(np.array(rows))]
        return np.array([value if is_number(value) else np.nan for value in found])

    first = values_at(np.arange(min(len(storage), 8)))
    told = [value for value in first if value is not np.nan]  # without bad records
    if not told or not all(map(is_number, told)):
        return None
    mark = content_mark(storage)
    return read() if mark is None else cached_selection(f"{mark} {name}", read)


def _mixture(config: Config, dataset: Any) -> Mixture | None:
    """Return the sources of a mix, their weights, and samplers of the drawn sources."""
    from penstock.pipeline.samplers.mix import MixedSource, Mixture

    sources = []
    for name, part in sources_of(config).items():
        weight, own = config["dataset"]["sources"][name]["weight"], dataset.sources[name]
        with said_of_source(name):
            sampler = build_sampler(part, own) if weight and len(own) else None
        sources.append(MixedSource(name, len(own), weight, sampler))
    return Mixture(tuple(sources), config["dataset"]["length"]) if sources else None


def build_settings(node: Config) -> Any:
    """Build typed settings, such as ``config["trainer"]``."""
    return build(node)


def build_device_transforms(
    config: Config, split: Split, device: Any = None
) -> list[BatchTransform]:
    """Build the steps of ``augment.device`` for a split, in order.

    Steps receive the seed, their name and the split, so that random steps leave evaluation alone.
    Neighbouring steps that move the pixels of rows are joined. `device` is the `device` of
    `build_loader`, whose workers' steps are left out.
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
    on_cpu = device is not None and str(device).partition(":")[0] == "cpu"
    movers = takewhile(lambda step: isinstance(step, DeviceStep) and step.moves_only, steps)
    first = list(movers) if on_cpu else []
    return StepChain(first) if first else None, steps[len(first) :]


def build_loggers(config: Config, run_dir: Path) -> list[Logger]:
    """Build the loggers, in the order of the config."""
    register_components(config["imports"])
    nodes = [node for node in config["logger"].values() if node]
    return [build(node, run_dir=run_dir, config=config) for node in nodes]


def build_callbacks(config: Config, **known: Any) -> dict[str, Callback]:
    """Build the callbacks by name; `known` are values that they may request."""
    nodes = {name: node for name, node in (config.get("callback") or {}).items() if node}
    return {name: build(node, **known) for name, node in nodes.items()}
