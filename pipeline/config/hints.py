"""Remedies for unknown keys and options: a common name of another tool, or the closest match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from penstock.core.registry import find
from penstock.core.user_errors import program_of
from penstock.pipeline.config.errors import nearest

_TRAIN = program_of("train")
_SCRIPT = _TRAIN.removeprefix("python ") if "python " in _TRAIN else f"--no-python {_TRAIN}"
_COMPRESSION = "type pack.to=parquet writer.compression=zstd"

TORCHRUN = "torchrun"

FOREIGN_NAMES: dict[str, str] = {
    # DataLoader, WebDataset and training scripts
    "shuffle": "sampler=random or sampler=sequential",
    "collate_fn": "collate=pad",
    "shardshuffle": "sampler=shard_shuffle",
    "epochs": "trainer.max_epochs",
    "learning_rate": "optimizer.lr",
    "root": "dataset.storage.path",
    "data_dir": "dataset.storage.path",
    "workers": "loader.num_workers",
    "batch": "loader.batch_size",
    "gpus": TORCHRUN,
    # Lightning
    "accelerator": "trainer.device",
    "devices": TORCHRUN,
    "precision": "trainer.amp=bf16 or trainer.amp=off",
    "gradient_clip_val": "trainer.clip_norm",
    "accumulate_grad_batches": "trainer.accumulate",
    "check_val_every_n_epoch": "trainer.validate_every",
    "val_check_interval": "trainer.validate_every=1",
    "mode": "trainer.monitor_mode",
    "ckpt_path": "trainer.resume",
    "default_root_dir": "outputs",
    "seed_everything": "seed",
    "fast_dev_run": "debug=one_batch",
    "enable_progress_bar": "trainer.progress=off or trainer.progress=bar",
    "patience": "callback=early_stopping callback.early_stopping.patience=5",
    # Hugging Face Trainer
    "gradient_accumulation_steps": "trainer.accumulate",
    "max_grad_norm": "trainer.clip_norm",
    "save_steps": "trainer.checkpoint_every",
    "eval_strategy": "trainer.validate_every=1",
    "output_dir": "outputs",
    "report_to": "logger",
    "bf16": "trainer.amp=bf16",
    "fp16": "trainer.amp=fp16",
    # timm, Ultralytics and MosaicML Composer
    "opt": "optimizer",
    "momentum": "optimizer=sgd optimizer.momentum=0.9",
    "clip_grad": "trainer.clip_norm",
    "model_ema": "callback=ema",
    "warmup_epochs": "scheduler.warmup=0.05",
    "lr0": "optimizer.lr",
    "imgsz": "augment.image_size",
    "max_duration": "trainer.max_epochs=10",
}
"""Common names of other tools, at most 40; `docs/moving.md` has the rest.

A key keeps the value that was given; other entries are typed as they stand. A name also stands for
longer names that end with it: `num_train_epochs` is `epochs`.
"""

REMEDIES: dict[str, str] = {
    "hydra.run.dir": "type outputs=<folder>",
    "hydra.sweep.dir": "type outputs=<folder>",
    "loader.worker_init_fn": "a dataset of your own takes it: type dataset=torch "
    "dataset.worker_init_fn=my_module.my_function",
    "loader.pin_memory_device": "trainer.device chooses it: type loader.pin_memory=true",
    "dataset.decode.mask_colors": "the image decoder takes it: type dataset/decode=image too",
    "loader.processes": "each worker is a process: type loader.num_workers=N, or loader=threads",
    "pack.compression": _COMPRESSION,
    "writer.compression": _COMPRESSION,
}
"""Keys that belong to another component or setting of Penstock or Hydra."""

REMOVED_OPTIONS: dict[tuple[str, str], str] = {
    ("dataset", "sqlite"): "type dataset=sql dataset.storage.url=sqlite:///file.db",
    ("dataset/annotations", "landmarks_xml"): "convert the labels to COCO keypoints and type "
    "dataset/annotations=coco dataset.annotations.path=<file>.json",
    ("dataset/annotations", "voc_keypoints"): "convert the labels to COCO keypoints and type "
    "dataset/annotations=coco dataset.annotations.path=<file>.json",
}
"""Removed options by group and name, with what to use instead."""

_OWN_OPTIONS = {
    "transform": "name the step: type augment.train.<name>._target_=albumentations.<Class>; "
    "for a step of your own, type imports=[my_module.py] transform=<name>",
    "model": "type model=module model.module._target_=torch.nn.<Class>; for a model of your own, "
    "type imports=[my_module.py] model=<name>",
}

VALUES_INSTEAD: dict[str, str] = {
    "trainer.resume=true": "type trainer.resume=auto for the newest run of this config",
    "trainer.max_epochs=None": "type trainer.max_epochs=null trainer.max_steps=1000",
    "trainer.resume=false": "type trainer.resume=null to start a new run",
    "loader.affinity=auto": "type loader.affinity=none, and start the run by torchrun "
    "--numa-binding=node",
    "trainer.amp=true": "type trainer.amp=bf16, or fp16 on CUDA",
}
"""Values of another type whose meaning is clear."""

_VALUES = {("trainer.device", "gpu"): "cuda", ("trainer.device", "0"): "cuda:0"}
_LIBRARIES = {"sampler": "torch.utils.data.", "scheduler": "torch.optim.lr_scheduler.",
              "transform": "albumentations."}  # fmt: skip
_PLACES = ("", "trainer", "loader", "optimizer", "scheduler", "dataset", "dataset.storage", "task",
           "model", "train", "training", "data", "datamodule")  # fmt: skip
_PARTS_OF_DATASETS = {"annotations": "image_folder", "source": "stream"}
_NAMED_STEPS = ("callback", "batch_transform")
_CLOSE = 0.7  # options have short names
_ELSEWHERE = 0.75  # short names, and keys at another place, need a closer match
_WORD = 6  # letters of a key that stands for longer names, as `resume` in `resume_from_checkpoint`


def foreign_name(key: str, siblings: Iterable[str] = ()) -> str | None:
    """Look up a common name of another tool, typed alone or below a top-level key.

    Args:
        key: The full key.
        siblings: Full keys at its place; a close one wins over the end of a longer name.
    """
    place, _, leaf = key.rpartition(".")
    if place not in _PLACES:
        return None
    known = [each.rpartition(".")[2] for each in siblings]
    if leaf not in FOREIGN_NAMES and nearest(leaf, known, cutoff=_ELSEWHERE) is not None:
        return None
    ends = [name for name in FOREIGN_NAMES if f"_{leaf}".endswith(f"_{name}")]
    return FOREIGN_NAMES[max(ends, key=len)] if ends else None


def nearest_option(name: str, known: Iterable[str]) -> str | None:
    """Find the closest option, or the longest one that shares its beginning or end."""
    options, lowered = list(known), name.lower()
    if (near := nearest(name, options, cutoff=_CLOSE)) is not None or len(name) < 3:
        return near
    parts = [o for o in options if lowered.startswith(o) or lowered.endswith(o)]
    parts = parts or [option for option in options if option.startswith(lowered)]
    return max(parts, key=len, default=None)


def instead_of_option(group: str, name: str, known: Sequence[str]) -> str:
    """Return the remedy for an unknown option, as the end of an error line."""
    if (group, name) in REMOVED_OPTIONS:
        return f"; {REMOVED_OPTIONS[group, name]}"
    name = name.removeprefix(_LIBRARIES.get(group, ""))
    if (group, name) == ("loader", "auto"):
        return "; type loader=default"
    if group == "experiment" and (name.endswith((".yaml", ".yml")) or "/" in name):
        path = Path(name)
        folder = path.parent.parent if path.parent.name == group else path.parent
        return f"; type --config-dir {folder} {group}={path.stem}"
    if group in ("transform", "batch_transform") and name[:1].isupper():
        stack = "train" if group == "transform" else "device"
        return f"; type augment.{stack}.my_step._target_=albumentations.{name}"
    for part, dataset in _PARTS_OF_DATASETS.items() if group == "dataset" else ():
        if find(f"{part}/{name}") is not None:
            return f"; type dataset={dataset} dataset/{part}={name}"
    exact = nearest(name, known, cutoff=_CLOSE)
    if exact is None and group == "scheduler" and name.endswith(("LR", "Restarts")):
        return f"; type scheduler=none scheduler._target_={_LIBRARIES[group]}{name}"
    near = "random" if name == "DistributedSampler" else nearest_option(name, known)
    if near in known:
        return f"; type {group}={near}"
    if group == "sampler" and name.endswith("Sampler"):
        return f"; type sampler=torch sampler.target={_LIBRARIES[group]}{name}"
    return f"; {_OWN_OPTIONS[group]}" if group in _OWN_OPTIONS else ""


def without_dashes(text: str) -> str:
    """Return the override for a flag such as ``--batch-size=32``, or an empty string."""
    name, equals, value = text.lstrip("-").partition("=")
    key = name.replace("-", "_")
    if not key:
        return ""
    settings = {"lr": "optimizer.lr", **_settings()}
    target = foreign_name(key) or (key if "." in key else _at_another_place(key, settings))
    return _typed(target, value if equals else None) if target else ""


def _typed(target: str, value: str | None) -> str:
    """Format what to type: overrides, the command of several ranks, or a key with a value."""
    if target == TORCHRUN:
        return f"type torchrun --nproc-per-node=2 {_SCRIPT}"
    if "=" in target:
        return f"type {target}"
    if (instead := VALUES_INSTEAD.get(f"{target}={value}")) is not None:
        return instead
    return f"type {target}={'...' if value is None else _VALUES.get((target, value), value)}"


def instead_of(
    key: str, value: str | None, siblings: Iterable[str], config: dict[str, Any], *, typed: bool
) -> str:
    """Return the remedy for an unknown key.

    Args:
        key: The full key.
        value: The value as typed, or None if it is too long to repeat.
        siblings: Full keys that are known at its place.
        config: The config.
        typed: The user typed the key; otherwise it comes from a file.
    """
    remove = f"type ~{key} to remove it"
    if value == "null" and not typed:  # a preset sets it for another component
        return remove
    if key in REMEDIES:
        return REMEDIES[key]
    if key in ("experiment", "debug"):
        return f"the file of {key} that is chosen needs a first line: # @package _global_"
    known = list(siblings)
    step, _, leaf = key.rpartition(".")
    if said := _image_size(key, value, config.get("augment")):
        return said
    if leaf == "size" and f"{step}.height" in known:
        sizes = (value or "").strip("[]").split(",")
        return f"type {step}.height={sizes[0]} {step}.width={sizes[-1]}"
    if (target := foreign_name(key, known)) is None:
        target = _closest(key, known, config, typed=typed)
    if target is None or target == key:
        return f"leave {key} away" if typed else remove
    per_rank = any(name in leaf for name in ("per_device", "per_gpu"))
    if not typed:
        also = _typed(target, value).removeprefix("type ")
        return f"type ~{key} {also}, or correct the file that sets it"
    return _typed(target, value) + (" (the number of all ranks together)" if per_rank else "")


def _closest(key: str, known: list[str], config: dict[str, Any], *, typed: bool) -> str | None:
    """Find the key, or the option of callbacks or batch transforms, that was probably meant."""
    step, _, leaf = key.rpartition(".")
    column = "dataset.storage.label_column"
    if key == "dataset.storage.labels" and column in known:
        return column
    below = dict(_leaves(config.get(step) or {}, f"{step}.")) if step in _PLACES and step else {}
    if leaf in below and below[leaf] != key:
        return below[leaf]
    groups = {name for name in known if isinstance(config.get(name), Mapping)}
    by_leaf = {each.rpartition(".")[2]: each for each in known if each not in groups}
    leaves = {name: full for name, full in _leaves(config, "") if full != key}
    everywhere = {**leaves, **_settings()} if typed else {}
    near = nearest(leaf, by_leaf, cutoff=_ELSEWHERE if leaf in everywhere or len(leaf) < 5 else 0.6)
    if near is not None or not typed:
        return by_leaf[near] if near else None
    for group in _NAMED_STEPS:
        if find(f"{group}/{leaf}") is not None:
            return f"{group}={leaf}"
    return _at_another_place(leaf, everywhere)


def _at_another_place(leaf: str, keys: Mapping[str, str]) -> str | None:
    """Find the full key of a name: the same, one of its words, or the closest match."""
    if leaf in keys:
        return keys[leaf]
    words = [name for name in keys if len(name) >= _WORD and f"_{name}_" in f"_{leaf}_"]
    near = max(words, key=len, default=None)
    if near is None and len(leaf) > 3:
        near = nearest(leaf, keys, cutoff=_ELSEWHERE)
    return keys[near] if near else None


def _settings() -> dict[str, str]:
    """Map the names of the settings of the loader and the trainer to their full keys."""
    found = {place: find(f"settings/{place}") for place in ("loader", "trainer")}
    return {
        name: f"{place}.{name}"
        for place, settings in found.items()
        if settings is not None
        for name in signature(settings.target).parameters
    }


def _leaves(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the names and full keys of values, the first of a config last."""
    for name, value in reversed([*config.items()]):
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif name not in ("_target_", "data_dir"):  # which is the folder of demo data
            yield name, f"{prefix}{name}"


_SIZES = frozenset("size image_size img_size imgsz input_size crop_size resolution".split())


def _image_size(key: str, value: str | None, augment: Any) -> str | None:
    """Name the variables of `augment` that set the image size of its stacks; None if unclear."""
    step, _, leaf = key.rpartition(".")
    sides = {"height", "width"} if step == "augment" else set()
    if not isinstance(augment, Mapping) or leaf not in _SIZES | sides or step not in _HOLD_SIZES:
        return None
    high, wide = ((value or "").strip("[]").replace(" ", "").split(",") * 2)[:2]
    variables = augment.keys() - (sides if leaf in sides else {leaf})
    if "height" in variables:
        return f"type augment.height={high} augment.width={wide}"
    if "image_size" not in variables:
        return f"leave {key} away" if step == "augment" else None
    said = f"type augment.image_size={high}"
    if "eval_size" in variables and high.isdecimal():  # the preset's ratio
        before = round(int(high) * augment["eval_size"] / augment["image_size"])
        said += f" augment.eval_size={before}"
    return said


_HOLD_SIZES = ("", "augment", "dataset")
"""Parents under which users expect an image size."""


def meant_for_another(name: str, sources: Mapping[str, Any]) -> bool:
    """Return whether a source without a dataset is nearly named as one that has a dataset."""
    node = sources[name]
    if not isinstance(node, dict) or _has_dataset(node):
        return False
    return nearest(name, [other for other in sources if _has_dataset(sources[other])]) is not None


def _has_dataset(source: Any) -> bool:
    dataset = source.get("dataset") if isinstance(source, dict) else None
    return dataset is not None and (not isinstance(dataset, dict) or "_target_" in dataset)
