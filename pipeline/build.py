"""Config to objects: the one place that makes what a config names, in the order of the data.

Everything here takes the plain, resolved config that `pipeline.config` has checked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sized
from enum import Enum
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.completeness import check_complete
from pipeline.config.allowed import family_of, resolve_class, resolve_function, resolve_target
from pipeline.config.discovery import load_all
from pipeline.config.places import PLACES, TARGETS
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

_NO_ARGUMENTS = frozenset({"_target_", "_after_"})


def build(node: Config, **injected: Any) -> Any:
    """Make the object that a config node describes.

    Args:
        node: A mapping with a ``_target_``; nested mappings with one are built first.
        injected: What is known at run time; passed on by name where the target asks for it.

    Returns:
        The object; for a function that is the component itself, the function with the node's
        and the injected arguments bound.
    """
    target = resolve_target(node["_target_"])
    arguments = {k: _build_nested(v) for k, v in node.items() if k not in _NO_ARGUMENTS}
    accepted = inspect.signature(target.call).parameters
    if target.partial and not inspect.isclass(target.call):
        arguments |= {k: v for k, v in injected.items() if k in accepted}
        return functools.partial(target.call, **arguments) if arguments else target.call
    for name, value in arguments.items():
        default = accepted[name].default if name in accepted else None
        if isinstance(default, Enum) and isinstance(value, str):  # a config holds its name
            arguments[name] = type(default)[value]
    arguments |= {k: v for k, v in injected.items() if k in accepted}
    return _call(node, target.call, arguments.pop("_args_", ()), arguments)


def _call(node: Config, call: Any, positional: Iterable[Any], arguments: dict[str, Any]) -> Any:
    """Call a target; what a library says against its arguments becomes one line."""
    name = node["_target_"]
    if "/" in name:  # a component's own traceback is of use, and ours have said it in a line
        made = call(*positional, **arguments)
        check_complete(made, name)
        return made
    try:
        return call(*positional, **arguments)
    except (TypeError, ValueError) as error:
        text = ", ".join(f"{k}={v!r}" for k, v in node.items() if k not in _NO_ARGUMENTS)
        raise ValueError(f"{_key_of(name)}{name}({text}) cannot be made: {_said(error)}") from error


def _key_of(target: str) -> str:
    """Where a class of a library stands in a config, where it can only stand there."""
    family = family_of(target)
    keys = [key for key, place in PLACES.items() if family and family.name in place.kinds]
    return f"{keys[0]}: " if keys else ""


def _said(error: Exception) -> str:
    """What a library says, in one line; of pydantic, the arguments and what is wrong with each."""
    from pydantic import ValidationError

    told = error.__cause__ or error  # albumentations raises its text anew
    if isinstance(told, ValidationError):
        return "; ".join(
            f"{'.'.join(map(str, each['loc']))} is {each['input']!r}: {each['msg']}"
            for each in told.errors()
        )
    return " ".join(str(error).split())


def _build_nested(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "_target_" in value:
            return build(value)
        return {key: _build_nested(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_build_nested(item) for item in value)
    return value


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
            arguments[key] = _build_nested(value)
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
    arguments = {k: _build_nested(v) for k, v in node.items() if k not in _NO_ARGUMENTS}
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
