"""Config to what gives the batches: dataset, transform, sampler and loader, in that order.

Everything here takes the plain, resolved config that `pipeline.config` has checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sized
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config.allowed import resolve_class, resolve_function, resolve_target
from pipeline.config.discovery import load_all
from pipeline.config.objects import NO_ARGUMENTS, build, build_nested
from pipeline.config.places import TARGETS
from pipeline.config.sources import said_of_source, sources_of
from pipeline.identity import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from datasets.protocols import (
        Dataset,
        Sampler,
        Storage,
        StreamDataset,
        Transform,
    )
    from pipeline.loader.loader import Loader
    from pipeline.samplers.mix import Mixture

Split = Literal["train", "val"]
Config = Mapping[str, Any]


def build_dataset(config: Config, split: Split) -> Dataset | StreamDataset:
    """The samples of a split: storage, decoding and the augmentation of that split."""
    from datasets.partners import check_gives_partners

    load_all(config["imports"])
    node = dict(config["dataset"])
    target = resolve_target(node.pop("_target_"))
    arguments: dict[str, Any] = {
        "transform": build_transform(config, split),
        "seed": config["seed"],
        "split": split,
    }
    for key, value in node.items():
        if key == "sources" and sources_of(config):
            arguments[key] = {}
            for name, part in sources_of(config).items():
                with said_of_source(name):
                    arguments[key][name] = build_dataset(part, split)
        elif key in ("storage", "source"):
            arguments[key] = _storage_recipe(value, Path(config["data_dir"]))
        elif key == "target":
            arguments[key] = resolve_class(value, bases=("torch.utils.data.Dataset",))
        elif key in ("collate_fn", "worker_init_fn") and value is not None:
            modules = {str(node["target"]).rpartition(".")[0], *_import_names(config["imports"])}
            arguments[key] = resolve_function(value, modules)
        else:
            arguments[key] = build_nested(value)
    dataset = target.call(**arguments)
    check_gives_partners(dataset, arguments["transform"], split=split)
    return dataset


def open_storage(config: Config, split: Split) -> Storage:
    """The records of a split alone, as they lie: what packing reads."""
    return storage_opener(config, split)()


def storage_opener(config: Config, split: Split) -> Callable[[], Storage]:
    """What opens the records of a split, here or, pickled, in another process."""
    from datasets.splits import open_split

    load_all(config["imports"])
    node = config["dataset"]
    if "storage" not in node:
        what = f"{node['_target_']} has no storage of its own"
        raise ValueError(f"{what}; take one data set alone, such as dataset=image_folder")
    recipe = _storage_recipe(node["storage"], Path(config["data_dir"]))
    annotations = build(node["annotations"]) if node.get("annotations") else None
    return functools.partial(
        open_split, recipe, split=split, val_fraction=node["val_fraction"], annotations=annotations
    )


def _storage_recipe(node: Config, data_dir: Path) -> Any:
    """How to open a storage or source; demo sets are made here, when asked for by name."""
    from datasets.demo_sets import made_here
    from datasets.splits import StorageRecipe

    target = resolve_target(node["_target_"])
    arguments = {k: build_nested(v) for k, v in node.items() if k not in NO_ARGUMENTS}
    path, name = arguments.get("path"), node["_target_"].rpartition("/")[2]
    if isinstance(path, str) and (made := made_here(path, name, data_dir)) is not None:
        arguments["path"] = str(made)
    return StorageRecipe(target.call, arguments)


def _import_names(imports: Iterable[str]) -> set[str]:
    """Module names of `imports`, whose files are imported by their stem."""
    return {Path(name).stem if name.endswith(".py") else name for name in imports}


def build_transform(config: Config, split: Split) -> Transform:
    """The augmentation stack of a split: ``augment.train`` or ``augment.eval``."""
    from transforms.cpu.stack import build_stack

    augment = config["augment"]
    steps = augment["train" if split == "train" else "eval"]
    targets = {name: build(augment[name]) for name in TARGETS if augment.get(name)}
    return build_stack(steps or {}, build_step=build, **targets)


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
) -> Loader:
    """A loader of batches, ready to iterate; usable in anybody's loop.

    Args:
        config: A checked config, such as `pipeline.compose` gives.
        split: ``train`` (the configured sampler) or ``val`` (all of it once, in order).
        rank: This process among those that share each batch.
        world_size: Number of these processes.
        run_dir: Where ``bad_samples.csv`` is written; None writes none.
        sampler: Taken for ``train`` in place of the configured one.
        group: Positions that no rank may cut apart, beside those that steps name.
        device: Where batches will be used. On the CPU, workers then do the steps of
            ``augment.device`` that come first and only move pixels; `build_device_transforms`,
            told the same, leaves these out. None: workers do none of them.

    Returns:
        An iterable of batches: dicts of tensors with ``image`` uint8 [B, H, W, C], ``label``,
        ``index``, ``position`` and ``epoch`` int64 [B], ``valid`` bool [B], and ``key``, a list
        of strings.

    Raises:
        ValueError: Data is missing or cannot be used as configured.
    """
    from pipeline.build_transforms import build_device_transforms, build_worker_steps
    from pipeline.loader.loader import Loader

    dataset = build_dataset(config, split)
    if split == "train" and isinstance(dataset, Sized) and not len(dataset):
        raise ValueError(
            f"dataset: no sample to train on; got dataset.val_fraction="
            f"{config['dataset'].get('val_fraction')}, check that and what the data holds"
        )
    if sampler is None and split == "train":
        sampler = build_sampler(config, dataset)
    return Loader(
        dataset,
        sampler=sampler if split == "train" else None,
        collate=build(config["collate"]),
        settings=build(config["loader"]),
        seed=config["seed"],
        split=split,
        rank=rank,
        world_size=world_size,
        imports=tuple(config["imports"]),
        group=lcm(group, *(getattr(t, "group", 1) for t in build_device_transforms(config, split))),
        identity=identity_of(config, split, sampler),
        bad_samples_path=run_dir / "bad_samples.csv" if run_dir else None,
        steps=build_worker_steps(config, split, device),
    )


def build_sampler(config: Config, dataset: Any) -> Any:
    """The configured sampler of a split, or None for a stream, which has an order of its own."""
    if not hasattr(dataset, "__len__"):
        return None
    node = dict(config["sampler"])
    if node["_target_"] == "sampler/torch":
        node["target"] = resolve_class(node["target"], bases=("torch.utils.data.Sampler",))
    return build(
        node,
        n=len(dataset),
        index=dataset.index,
        seed=config["seed"],
        batch_size=config["loader"]["batch_size"],
        mixed=_mixture(config, dataset),
    )


def _mixture(config: Config, dataset: Any) -> Mixture | None:
    """What is mixed: the sources of a mix with their weights, and a sampler for each drawn one."""
    from pipeline.samplers.mix import MixedSource, Mixture

    sources = []
    for name, part in sources_of(config).items():
        weight, own = config["dataset"]["sources"][name]["weight"], dataset.sources[name]
        with said_of_source(name):
            sampler = build_sampler(part, own) if weight and len(own) else None
        sources.append(MixedSource(name, len(own), weight, sampler))
    return Mixture(tuple(sources), config["dataset"]["length"]) if sources else None


def build_settings(node: Config) -> Any:
    """Typed settings, such as ``config["trainer"]``."""
    return build(node)
