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
    "pack.overviews": "type pack.short_side=512 to store smaller images",
    "writer.compression": _COMPRESSION,
}
"""Keys that belong to another component or setting of Penstock or Hydra."""

_KEYPOINTS = ("convert the labels to COCO keypoints and type dataset/annotations=coco "
              "dataset.annotations.path=<file>.json")  # fmt: skip
OPTIONS_INSTEAD: dict[tuple[str, str], str] = {
    ("dataset", "sqlite"): "type dataset=sql dataset.storage.url=sqlite:///file.db",
    ("dataset/annotations", "landmarks_xml"): _KEYPOINTS,
    ("dataset/annotations", "voc_keypoints"): _KEYPOINTS,
    ("loader", "auto"): "type loader=default",
    ("sampler", "DistributedSampler"): "type sampler=random",
    ("sampler", "RandomSampler"): "type sampler=random",
}
"""Removed options, and names of classes, by group and name."""

_CLASSES = {
    "scheduler": "scheduler=none scheduler._target_=torch.optim.lr_scheduler.",
    "sampler": "sampler=torch sampler.target=torch.utils.data.",
    "transform": "augment.train.my_step._target_=albumentations.",
    "model": "model=module model.module._target_=torch.nn.",
}
"""By group: what to type, before its name, for a class of a library."""

VALUES_INSTEAD: dict[str, str] = {
    "trainer.resume=true": "type trainer.resume=auto for the newest run of this config",
    "trainer.max_epochs=None": "type trainer.max_epochs=null trainer.max_steps=1000",
    "trainer.resume=false": "type trainer.resume=null to start a new run",
    "loader.affinity=auto": "type loader.affinity=none, and start the run by torchrun "
    "--numa-binding=node",
    "trainer.amp=true": "type trainer.amp=bf16, or fp16 on CUDA",
    "trainer.device=gpu": "type trainer.device=cuda",
    "trainer.device=0": "type trainer.device=cuda:0",
}
"""Values of another type whose meaning is clear."""

_PLACES = ("", "trainer", "loader", "optimizer", "scheduler", "dataset", "dataset.storage", "task",
           "model", "train", "training", "data", "datamodule")  # fmt: skip
_OPTION_CUTOFF = 0.7  # options have short names
_ELSEWHERE_CUTOFF = 0.75  # short names, and keys at another place, need a closer match


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
    if leaf not in FOREIGN_NAMES and nearest(leaf, known, cutoff=_ELSEWHERE_CUTOFF) is not None:
        return None
    ends = [name for name in FOREIGN_NAMES if f"_{leaf}".endswith(f"_{name}")]
    return FOREIGN_NAMES[max(ends, key=len)] if ends else None


def nearest_option(name: str, known: Iterable[str]) -> str | None:
    """Find the closest option, or the longest one that shares its beginning or end."""
    options, lowered = list(known), name.lower()
    if (near := nearest(name, options, cutoff=_OPTION_CUTOFF)) is not None or len(name) < 3:
        return near
    parts = [each for each in options if lowered.startswith(each) or lowered.endswith(each)]
    parts = parts or [each for each in options if each.startswith(lowered)]
    return max(parts, key=len, default=None)


def instead_of_option(group: str, name: str, known: Sequence[str]) -> str:
    """Return the remedy for an unknown option, as the end of an error line."""
    name = name.rpartition(".")[2] if group in _CLASSES else name
    if said := OPTIONS_INSTEAD.get((group, name)):
        return f"; {said}"
    if group == "experiment" and (path := Path(name)).name != path.stem:
        return f"; type --config-dir {path.parent.parent} {group}={path.stem}"
    for part, dataset in (("annotations", "image_folder"), ("source", "stream")):
        if group == "dataset" and find(f"{part}/{name}") is not None:
            return f"; type dataset={dataset} dataset/{part}={name}"
    near = nearest_option(name, known)
    is_class = group in _CLASSES and name[:1].isupper()
    is_near = near is not None and (group != "transform" and len(name) < 3 * len(near))
    if near is not None and (is_near or not is_class):
        return f"; type {group}={near}"
    return f"; type {_CLASSES[group]}{name if is_class else '<Class>'}" if group in _CLASSES else ""


def without_dashes(text: str) -> str:
    """Return the override for a flag such as ``--batch-size=32``, or an empty string."""
    name, equals, value = text.lstrip("-").partition("=")
    key = name.replace("-", "_")
    target = foreign_name(key) or (key if "." in key else _settings().get(key))
    return _typed(target, value if equals else None) if target else ""


def _typed(target: str, value: str | None) -> str:
    """Format what to type: overrides, the command of several ranks, or a key with a value."""
    if target == TORCHRUN:
        return f"type torchrun --nproc-per-node=2 {_SCRIPT}"
    if "=" in target:
        return f"type {target}"
    typed = f"{target}={'...' if value is None else value}"
    return VALUES_INSTEAD.get(typed, f"type {typed}")


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
    if said := _image_size(key, value, config.get("augment")):
        return said
    known = list(siblings)
    target = foreign_name(key, known) or _closest(key, known, config, typed=typed)
    if target is None or target == key:
        return f"leave {key} away" if typed else remove
    if not typed:
        also = _typed(target, value).removeprefix("type ")
        return f"type ~{key} {also}, or correct the file that sets it"
    return _typed(target, value)


def _closest(key: str, known: list[str], config: dict[str, Any], *, typed: bool) -> str | None:
    """Find the key, or the option of callbacks or batch transforms, that was probably meant."""
    step, _, leaf = key.rpartition(".")
    leaves = {name: full for name, full in _leaves(config, "") if full != key}
    below = dict(_leaves(config.get(step) or {}, f"{step}.")) if step in _PLACES and step else {}
    if below.get(leaf, key) != key:
        return below[leaf]
    siblings = {each.rpartition(".")[2]: each for each in known
                if not isinstance(config.get(each), Mapping)}  # fmt: skip
    elsewhere = {**leaves, **_settings()} if typed else {}
    is_short = leaf in elsewhere or len(leaf) < 5
    near = nearest(leaf, siblings, cutoff=_ELSEWHERE_CUTOFF if is_short else 0.6)
    if near is not None or not typed:
        return siblings[near] if near else None
    for group in ("callback", "batch_transform"):
        if find(f"{group}/{leaf}") is not None:
            return f"{group}={leaf}"
    words = [name for name in elsewhere if len(name) > 5 and f"_{name}_" in f"_{leaf}_"]
    near = leaf if leaf in elsewhere else max(words, key=len, default=None)
    if near is None and len(leaf) > 3:
        near = nearest(leaf, elsewhere, cutoff=_ELSEWHERE_CUTOFF)
    return elsewhere[near] if near else None


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
    if not isinstance(augment, Mapping) or leaf not in _SIZES | sides:
        return None
    if step not in ("", "augment", "dataset"):
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
