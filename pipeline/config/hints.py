"""Remedies for unknown keys and options: a common name of another tool, or the closest match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from penstock.core.registry import find
from penstock.core.user_errors import nearest
from penstock.pipeline.config.options import groups, options_of
from penstock.pipeline.config.places import top_level_keys

_TORCHRUN = "torchrun --nproc-per-node=2 --no-python penstock train"

_NAMES = {
    "sampler=random or sampler=sequential": "shuffle",
    "sampler=shard_shuffle": "shardshuffle",
    "collate=pad": "collate_fn",
    "dataset.storage.path": "root data_dir",
    "loader.num_workers": "workers",
    "loader.batch_size": "batch",
    "augment.image_size": "imgsz",
    "trainer.max_epochs": "epochs",
    "trainer.max_epochs=10": "max_duration",
    "trainer.device": "accelerator",
    "trainer.amp=bf16 or trainer.amp=off": "precision",
    "trainer.amp=bf16": "bf16",
    "trainer.amp=fp16": "fp16",
    "trainer.clip_norm": "gradient_clip_val max_grad_norm clip_grad",
    "trainer.accumulate": "accumulate_grad_batches gradient_accumulation_steps",
    "trainer.validate_every": "check_val_every_n_epoch",
    "trainer.validate_every=1": "val_check_interval eval_strategy",
    "trainer.checkpoint_every": "save_steps",
    "trainer.monitor_mode": "mode",
    "trainer.resume": "ckpt_path",
    "trainer.progress=off or trainer.progress=bar": "enable_progress_bar",
    "optimizer": "opt",
    "optimizer.lr": "learning_rate lr0",
    "optimizer=sgd optimizer.momentum=0.9": "momentum",
    "scheduler.warmup=0.05": "warmup_epochs",
    "callback=early_stopping callback.early_stopping.patience=5": "patience",
    "callback=ema": "model_ema",
    "logger": "report_to",
    "outputs": "default_root_dir output_dir",
    "seed": "seed_everything",
    "debug=one_batch": "fast_dev_run",
    _TORCHRUN: "gpus devices",
}
FOREIGN_NAMES = {name: typed for typed, names in _NAMES.items() for name in names.split()}
"""Overrides for common names of other tools, at most 40; `docs/moving.md` has the rest.

A key keeps the value that was given; other entries are typed as they stand. A name also stands for
longer names that end with it: `num_train_epochs` is `epochs`.
"""

_COMPRESSION = "type pack.to=parquet writer.compression=zstd"
INSTEAD: dict[str, str] = {
    "experiment": "the chosen file needs a first line: # @package _global_",
    "hydra.run.dir": "type outputs=<folder>",
    "loader.pin_memory_device": "type loader.pin_memory=true",
    "dataset.decode.mask_colors": "type dataset/decode=image too",
    "dataset.source": "type dataset=stream",
    "pack.compression": _COMPRESSION,
    "writer.compression": _COMPRESSION,
    "dataset=sqlite": "type dataset=sql dataset.storage.url=sqlite:///file.db",
    "sampler=DistributedSampler": "type sampler=random",
    "sampler=RandomSampler": "type sampler=random",
    "trainer.resume=true": "type trainer.resume=auto for the newest run of this config",
    "trainer.max_epochs=None": "type trainer.max_epochs=null trainer.max_steps=1000",
    "trainer.amp=true": "type trainer.amp=bf16, or fp16 on CUDA",
    "trainer.device=0": "type trainer.device=cuda:0",
}
"""Remedies for keys, options and values that belong elsewhere or were removed."""

_CLASSES = {
    "scheduler": "scheduler=none scheduler._target_=torch.optim.lr_scheduler.",
    "sampler": "sampler=torch sampler.target=torch.utils.data.",
    "transform": "augment.train.my_step._target_=albumentations.",
    "model": "model=timm model.name=",
}
"""By group: what to type, before its name, for a class or a model of a library."""

# Keys below which the names of other tools are typed.
_PLACES = ("", "trainer", "loader", "optimizer", "scheduler", "dataset", "dataset.storage", "task",
           "model", "train", "training", "data", "datamodule")  # fmt: skip
_CLOSE = 0.71  # of short names, and of names at another place


def nearest_option(name: str, known: Iterable[str]) -> str | None:
    """Find the closest option, or the longest one that shares its beginning or end."""
    options, lowered = list(known), name.lower()
    if (near := nearest(name, options, cutoff=_CLOSE)) is not None or len(name) < 3:
        return near
    parts = [each for each in options if lowered.startswith(each) or lowered.endswith(each)]
    parts = parts or [each for each in options if each.startswith(lowered)]
    return max(parts, key=len, default=None)


def instead_of_option(group: str, name: str, known: Sequence[str]) -> str:
    """Return the remedy for an unknown option, as the end of an error line."""
    name = name.rpartition(".")[2] if group in _CLASSES else name
    if said := INSTEAD.get(f"{group}={name}"):
        return f"; {said}"
    for part, dataset in (("annotations", "image_folder"), ("source", "stream")):
        if group == "dataset" and find(f"{part}/{name}") is not None:
            return f"; type dataset={dataset} dataset/{part}={name}"
    near = nearest_option(name, known)
    is_class = group == "model" or (group in _CLASSES and name[:1].isupper())
    if is_class and (near is None or group == "transform" or len(name) >= 3 * len(near)):
        return f"; type {_CLASSES[group]}{name}"
    return f"; type {group}={near}" if near else ""


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
    leave = f"leave {key} away" if typed else f"type ~{key} to remove it, or correct its file"
    if said := INSTEAD.get(key) or _image_size(key, value, config.get("augment")):
        return said
    target = _meant(key, list(siblings), config) if typed else None
    return leave if target in (None, key, key.replace(".", "/")) else _type(str(target), value)


def _type(target: str, value: str | None) -> str:
    """Format what to type: overrides as they stand, or a key or group with a value."""
    if "=" in target:
        return f"type {target}"
    if options := options_of(target):
        value = nearest_option(value or "", options) or "<option>"
    typed = f"{target}={'...' if value is None else value}"
    return INSTEAD.get(typed, f"type {typed}")


def _meant(key: str, known: list[str], config: dict[str, Any]) -> str | None:
    """Find the key, the group or the override that was probably meant."""
    place, _, leaf = key.rpartition(".")
    foreign = FOREIGN_NAMES if place in _PLACES else {}
    elsewhere = _elsewhere(key, config)
    if leaf in foreign or elsewhere.get(leaf, "").startswith(f"{place}."):
        return foreign.get(leaf) or elsewhere[leaf]
    siblings = {each.rpartition(".")[2]: each for each in known
                if not isinstance(config.get(each), Mapping)}  # fmt: skip
    for command in () if place else config.keys() - {*top_level_keys()}:
        siblings |= _settings(command)
    is_short = leaf in elsewhere or len(leaf) < 5
    if (near := nearest(leaf, siblings, cutoff=_CLOSE if is_short else 0.6)) is not None:
        return siblings[near]
    if ends := [name for name in foreign if leaf.endswith(f"_{name}")]:
        return foreign[max(ends, key=len)]
    words = [n for n in elsewhere if n == leaf or (len(n) > 5 and f"_{n}_" in f"_{leaf}_")]
    near = max(words, key=len, default=None)
    if near is None and len(leaf) > 3:
        near = nearest(leaf, elsewhere, cutoff=_CLOSE)
    return elsewhere[near] if near else None


def _elsewhere(key: str, config: dict[str, Any]) -> dict[str, str]:
    """Map groups, options, settings and values, by their last names, to what to type.

    Of several values with one name, the first of the config counts.
    """
    found = {group.rpartition("/")[2]: group for group in groups()}
    for group in ("callback", "batch_transform"):
        found |= {name: f"{group}={name}" for name in options_of(group)}
    found |= _settings("loader") | _settings("trainer")
    return found | {name: full for name, full in _leaves(config, "") if full != key}


def _settings(name: str) -> dict[str, str]:
    """Map the names of settings to their full keys; nothing for a name without settings."""
    found = find(f"settings/{name}")
    arguments = signature(found.target).parameters if found else ()
    return {argument: f"{name}.{argument}" for argument in arguments}


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
    is_size = step in ("", "augment", "dataset") and leaf in _SIZES | sides
    if not is_size or not isinstance(augment, Mapping):
        return None
    high, wide = ((value or "").strip("[]").replace(" ", "").split(",") * 2)[:2]
    variables = augment.keys() - (sides if leaf in sides else {leaf})
    if "height" in variables:
        return f"type augment.height={high} augment.width={wide}"
    if "image_size" not in variables:
        return f"leave {key} away" if step == "augment" else None
    if "eval_size" not in variables or not high.isdecimal():
        return f"type augment.image_size={high}"
    before = round(int(high) * augment["eval_size"] / augment["image_size"])  # in its ratio
    return f"type augment.image_size={high} augment.eval_size={before}"
