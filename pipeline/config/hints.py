"""Names that people bring from other tools, and what they are called here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from penstock.core.user_errors import program_of
from penstock.pipeline.config.errors import is_first_rank, nearest

_TRAIN = program_of("train")
_BY_TORCHRUN = _TRAIN.removeprefix("python ") if "python " in _TRAIN else f"--no-python {_TRAIN}"
_RANKS = f"start one process for each: torchrun --nproc-per-node=2 {_BY_TORCHRUN}"
_COMPRESSION = "parquet and arrow compress: type pack.to=parquet writer.compression=zstd"
_TABLES = (
    "tables of a database, also of an SQLite file, are another data set: "
    "type dataset=sql dataset.storage.url=sqlite:///file.db"
)
_BATCH_SAMPLER = (
    "a sampler may cut the batches: type sampler=torch "
    "sampler.target=torch.utils.data.BatchSampler sampler.args.drop_last=true"
)

_EMA = "the average of the weights is a callback: type callback=ema"
_EMA_DECAY = "type callback=ema callback.ema.decay=0.999"
_EARLY_STOPPING = "it is a callback: type callback=early_stopping"
_PATIENCE = "type callback=early_stopping callback.early_stopping.patience=5"
_PROFILE = "the profiler is a callback: type callback=profile"

RENAMED: dict[str, str] = {
    "loader.workers": "loader.num_workers",
    "loader.batch": "loader.batch_size",
    "loader.prefetch": "loader.prefetch_factor",
    "loader.timeout": "loader.timeout_s",
    "loader.tail": "loader.drop_last",
    "loader.val_batch_size": "loader.eval_batch_size",
    "loader.start_method": "loader.multiprocessing_context",
    "trainer.epochs": "trainer.max_epochs",
    "trainer.num_epochs": "trainer.max_epochs",
    "trainer.steps": "trainer.max_steps",
    "trainer.gradient_clip_val": "trainer.clip_norm",
    "trainer.accumulate_grad_batches": "trainer.accumulate",
    "optimizer.learning_rate": "optimizer.lr",
    "task.class_weight": "task.class_weights",
    "task.pos_weight": "task.class_weights",
    "task.smoothing": "task.label_smoothing",
    "optimizer.wd": "optimizer.weight_decay",
    "scheduler.warmup_steps": "scheduler.warmup",
    "scheduler.num_warmup_steps": "scheduler.warmup",
    "trainer.warmup": "scheduler.warmup",
    "optimizer.param_groups": "optimizer.groups",
    "optimizer.llrd": "optimizer.layer_decay",
    "optimizer.layer_wise_lr_decay": "optimizer.layer_decay",
    "dataset.path": "dataset.storage.path",
    "dataset.root": "dataset.storage.path",
    "dataset.url": "dataset.storage.url",
    "dataset.data_dir": "dataset.storage.path",
    "dataset.storage.root": "dataset.storage.path",
    "dataset.storage.data_dir": "dataset.storage.path",
    "dataset.labels": "dataset.storage.labels",
    "dataset.storage.labels": "dataset.storage.label_column",
    "data.path": "dataset.storage.path",
    "train.epochs": "trainer.max_epochs",
    "epochs": "trainer.max_epochs",
    "device": "trainer.device",
    "accelerator": "trainer.device",
    "trainer.accelerator": "trainer.device",
    "img_size": "augment.image_size",
    "dataset.image_size": "augment.image_size",
    "dataset.img_size": "augment.image_size",
    "check_val_every_n_epoch": "trainer.validate_every",
    "trainer.check_val_every_n_epoch": "trainer.validate_every",
    "trainer.save_every": "trainer.checkpoint_every",
    "trainer.checkpoint": "trainer.resume",
    **dict.fromkeys(
        (
            "trainer.pretrained",
            "trainer.weights",
            "trainer.init",
            "trainer.load_from",
            "trainer.finetune",
            "init_from",
            "load_from",
            "pretrained",
            "weights",
        ),
        "trainer.init_from",
    ),
    "freeze": "trainer.freeze",
    "trainer.frozen": "trainer.freeze",
    "model.freeze": "trainer.freeze",
    "compile": "trainer.compile",
    "model.compile": "trainer.compile",
    "torch_compile": "trainer.compile",
    "trainer.torch_compile": "trainer.compile",
    "callback.early_stopping.monitor": "trainer.monitor",
    "callback.early_stopping.mode": "trainer.monitor_mode",
    "pack.storage": "pack.to",
    "pack.format": "pack.to",
    "pack.output": "pack.path",
    "batch": "loader.batch_size",
    "workers": "loader.num_workers",
    "learning_rate": "optimizer.lr",
    "data": "dataset",
    "optim": "optimizer",
    "lr_scheduler": "scheduler",
    "loss": "task",
    "transforms": "augment",
    "augmentation": "augment",
    "output_dir": "outputs",
    "hydra.run.dir": "outputs",
    "hydra.sweep.dir": "outputs",
}
"""Keys of other tools, and ours."""

INSTEAD: dict[str, str] = {
    "loader.shuffle": "the order is the sampler's: type sampler=random or sampler=sequential",
    "transform": "a step has a name: type augment.train.<name>._target_=albumentations.<Class>, "
    "or, with one of your own, imports=[my_module.py] transform=<its name>",
    "model": "type model=module model.module._target_=torch.nn.<Class>, or, with one of your own, "
    "imports=[my_module.py] model=<its name>",
    "shuffle": "the order is the sampler's: type sampler=random or sampler=sequential",
    "loader.sampler": "the sampler is a group of its own: type sampler=weighted",
    "loader.collate_fn": "collating is a group of its own: type collate=pad",
    "loader.worker_init_fn": "it belongs to a data set of yours: dataset=torch "
    "dataset.worker_init_fn=my_module.my_function",
    "dataset.storage.table": _TABLES,
    "pack.compression": _COMPRESSION,
    "writer.compression": _COMPRESSION,
    "dataset.storage.query": _TABLES,
    "dataset.decode.mask_colors": "it belongs to images: type dataset/decode=image too",
    "trainer.gpus": _RANKS,
    "trainer.devices": _RANKS,
    "gpus": _RANKS,
    "trainer.lr": "it belongs to the optimizer: type optimizer.lr=0.001",
    "trainer.val_check_interval": "it is validated after whole epochs: type "
    "trainer.validate_every=1",
    "trainer.fast_dev_run": "a preset does that: type debug=one_batch",
    "fast_dev_run": "a preset does that: type debug=one_batch",
    "enable_progress_bar": "type trainer.progress=off, or bar",
    "trainer.enable_progress_bar": "type trainer.progress=off, or bar",
    **dict.fromkeys(("ema", "use_ema", "model_ema", "model.ema", "trainer.ema"), _EMA),
    **dict.fromkeys(("ema_decay", "model_ema_decay", "trainer.ema_decay"), _EMA_DECAY),
    **dict.fromkeys(
        ("early_stopping", "early_stop", "trainer.early_stopping", "trainer.early_stop"),
        _EARLY_STOPPING,
    ),
    **dict.fromkeys(("patience", "trainer.patience", "early_stopping_patience"), _PATIENCE),
    **dict.fromkeys(("profile", "profiler", "trainer.profile", "trainer.profiler"), _PROFILE),
    "trainer.callbacks": "callbacks are a group of their own: type callback=early_stopping",
    "scheduler.warmup_epochs": "warm-up is a share of the run, or a number of steps: type "
    "scheduler.warmup=0.05",
    "loader.pin_memory_device": "it follows trainer.device: leave it away",
    "loader.batch_sampler": _BATCH_SAMPLER,
    "loader.generator": "all draws follow from the seed: type seed=1",
    "task.class_weights": "classes are balanced by how often they are drawn: type sampler=weighted",
    "trainer.seed": "the seed is at the top: type seed=1",
    "hydra.job.chdir": "the working directory is never changed",
    "hydra.output_subdir": "each run writes to a folder of its own under outputs=",
}
"""Keys of other tools that have no counterpart, and what to do instead."""

CHOICES: dict[tuple[str, str], str] = {
    ("dataset", "imagefolder"): "image_folder",
    ("dataset", "folder"): "image_folder",
    ("dataset", "database"): "sql",
    ("dataset", "postgres"): "sql",
    ("dataset", "postgresql"): "sql",
    ("dataset", "mysql"): "sql",
    ("dataset", "mariadb"): "sql",
    ("sampler", "shuffle"): "random",
    ("sampler", "balanced"): "weighted",
    ("sampler", "WeightedRandomSampler"): "weighted",
    ("sampler", "RandomSampler"): "random",
    ("sampler", "SequentialSampler"): "sequential",
    ("sampler", "DistributedSampler"): "random",
    ("collate", "default"): "stack",
    ("optimizer", "adamW"): "adamw",
    ("scheduler", "constant"): "none",
    ("scheduler", "cos"): "cosine",
    ("scheduler", "CosineAnnealingLR"): "cosine",
    ("scheduler", "StepLR"): "step",
    ("scheduler", "ReduceLROnPlateau"): "plateau",
    ("loader", "dataloader"): "torch",
    ("logger", "tb"): "tensorboard",
    ("logger", "WandbLogger"): "wandb",
    ("logger", "weights_and_biases"): "wandb",
    ("logger", "MLFlowLogger"): "mlflow",
    ("callback", "EarlyStopping"): "early_stopping",
    ("callback", "EMA"): "ema",
    ("callback", "ModelEma"): "ema",
    ("callback", "WeightAveraging"): "ema",
    ("callback", "profiler"): "profile",
}
"""Options by the names they have elsewhere."""


VALUES_INSTEAD: dict[str, str] = {
    "trainer.resume=true": "the newest run of this config: type trainer.resume=auto",
    "trainer.resume=false": "to start anew: type trainer.resume=null",
    "trainer.amp=true": "type trainer.amp=bf16, or fp16 on CUDA",
}
"""Values of another type that say plainly what is meant."""

CHOICES_INSTEAD: dict[tuple[str, str], str] = {
    ("task", "multilabel"): "several yes-or-no labels need a task of your own: docs/own.md",
    ("sampler", "BatchSampler"): _BATCH_SAMPLER,
    ("sampler", "SubsetRandomSampler"): "type sampler=torch "
    "sampler.target=torch.utils.data.SubsetRandomSampler 'sampler.args.indices=[0,1,2]'",
    ("callback", "ModelCheckpoint"): "checkpoints are written in any case: type "
    "trainer.monitor=loss to choose what decides about the best",
    ("callback", "LearningRateMonitor"): "the rate is among the figures in any case: leave it away",
    ("dataset", "hf"): "the hubs' files are Parquet: type dataset=parquet "
    "dataset.storage.path=<folder>; what save_to_disk wrote is dataset=arrow",
    ("dataset", "map"): "type the storage's name: dataset=image_folder",
    ("dataset", "kafka"): "type dataset=stream dataset/source=kafka",
    ("dataset", "rabbitmq"): "type dataset=stream dataset/source=rabbitmq",
    ("dataset", "iterable"): "type dataset=stream, or, for one of your own, dataset=torch "
    "dataset.target=my_module.MyDataset sampler=sequential",
}
"""Options that are another thing here, and what to type."""

TARGETS_INSTEAD: dict[str, str] = {
    "albumentations.Cutout": "did you mean albumentations.CoarseDropout?",
    "albumentations.RandAugment": "a stack of many draws: type augment=strong",
    "albumentations.AutoAugment": "a stack of many draws: type augment=strong",
}
"""Targets that a library no longer has, or never had, and what to type."""

FORMER: dict[str, tuple[str, ...]] = {"loader=ring": ("loader=threads", "loader.engine=ring")}
"""Overrides of version 1, and what is read in their place."""


def rename_engine(config: dict[str, Any]) -> None:
    """Give ``loader.engine=ring``, typed or saved by a run of version 1, its name of today."""
    loader = config.get("loader")
    if isinstance(loader, dict) and loader.get("engine") == "ring":
        loader["engine"] = "processes" if loader.get("processes") else "threads"
        _tell(f"loader=ring is called loader={loader['engine']} now")


_LIBRARIES = {"sampler": "torch.utils.data.", "scheduler": "torch.optim.lr_scheduler.",
              "transform": "albumentations."}  # fmt: skip


def instead_of_option(group: str, name: str, known: Sequence[str]) -> str:
    """Tell what to type instead of an option that there is not.

    Args:
        group: The group.
        name: What was given.
        known: The options there are.
    """
    name = name.removeprefix(_LIBRARIES.get(group, ""))
    if (group, name) in CHOICES_INSTEAD:
        return f"; {CHOICES_INSTEAD[group, name]}"
    if group == "experiment" and (name.endswith((".yaml", ".yml")) or "/" in name):
        path = Path(name)
        where = path.parent.parent if path.parent.name == group else path.parent
        how = f"--config-dir {where} {group}={path.stem}"
        return f"; a folder that has {group}/{path.stem}.yaml is named: type {how}"
    if group in ("transform", "batch_transform") and name[:1].isupper():
        stack = "train" if group == "transform" else "device"
        return (
            f"; a step of albumentations has a name of yours: type "
            f"augment.{stack}.my_step._target_=albumentations.{name}"
        )
    hinted = CHOICES.get((group, name))
    near = hinted if hinted in known else nearest(name, known)
    if near:
        return f"; type {group}={near}"
    if group == "scheduler" and name.endswith(("LR", "Restarts")):
        return f"; type scheduler=none scheduler._target_={_LIBRARIES[group]}{name}"
    return f"; {INSTEAD[group]}" if group in INSTEAD else ""


@cache
def _tell(line: str) -> None:
    """Print a line on standard error, once, and on the first rank alone."""
    if is_first_rank():
        print(line, file=sys.stderr)


_PRECISIONS = {"16": "fp16", "16-mixed": "fp16", "fp16": "fp16", "true": "fp16", "32": "off",
               "bf16": "bf16", "bf16-mixed": "bf16", "false": "off"}  # fmt: skip
_PRESETS = ("experiment", "debug")
_OF_PRECISION = ("precision", "fp16", "use_amp", "mixed_precision")


def instead_of(
    key: str, value: str | None, siblings: Iterable[str], config: dict[str, Any], *, typed: bool
) -> str:
    """Tell what to type instead of an unknown key.

    Args:
        key: The full key.
        value: What was given to it, as it is typed; None if it is too long to repeat.
        siblings: Full keys that are known at its place.
        config: The config, in whose other parts a key of this name may stand.
        typed: The user typed the key; otherwise it stands in a file.
    """
    if key in INSTEAD:
        return INSTEAD[key]
    if key.removeprefix("trainer.") in _OF_PRECISION:
        return f"type trainer.amp={_PRECISIONS.get(str(value).lower(), 'bf16')}"
    if key in _PRESETS:
        return f"the file of {key} that is chosen needs a first line: # @package _global_"
    known = list(siblings)
    step, _, leaf = key.rpartition(".")
    if leaf in ("image_size", "img_size") and "height" in (config.get("augment") or ()):
        step, leaf = "augment", "size"
    if leaf == "size" and (step == "augment" or f"{step}.height" in known):
        sizes = (value or "").strip("[]").split(",")
        return f"type {step}.height={sizes[0]} {step}.width={sizes[-1]}"
    target = RENAMED.get(key)
    if key == "dataset.storage.labels" and target not in known:
        target = None
    if target is None:
        by_leaf = {sibling.rpartition(".")[2]: sibling for sibling in known}
        near = nearest(leaf, by_leaf)
        if near is not None:
            target = by_leaf[near]
        elif typed:
            target = _elsewhere(leaf, config)
    if target is None or target == key:
        return f"leave {key} away" if typed else f"type ~{key} to take it away"
    return f"type {target}=..." if value is None else f"type {target}={value}"


def meant_for_another(name: str, sources: Mapping[str, Any]) -> bool:
    """Tell whether a source of a mix that has no data set is nearly named as one that has."""
    node = sources[name]
    if not isinstance(node, dict) or _has_dataset(node):
        return False
    return nearest(name, [other for other in sources if _has_dataset(sources[other])]) is not None


def _has_dataset(source: Any) -> bool:
    dataset = source.get("dataset") if isinstance(source, dict) else None
    return dataset is not None and (not isinstance(dataset, dict) or "_target_" in dataset)


def _elsewhere(leaf: str, config: dict[str, Any], prefix: str = "") -> str | None:
    """Find the first key of this name anywhere in the config."""
    for name, value in config.items():
        if name == leaf and prefix:
            return f"{prefix}{name}"
        if isinstance(value, dict):
            found = _elsewhere(leaf, value, f"{prefix}{name}.")
            if found is not None:
                return found
    return None
