"""Names that people bring from other tools, and what they are called here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

from penstock.core.registry import find
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

_STEP = "it is a step of batches: type batch_transform="
_KAFKA = "type dataset=stream dataset/source=kafka dataset.source.topic=photos"
_HUB = (
    "the hubs' files are Parquet: type dataset=parquet "
    "dataset.storage.path=<folder>; what save_to_disk wrote is dataset=arrow"
)
_ITERABLE = (
    "type dataset=stream, or, for one of your own, dataset=torch "
    "dataset.target=my_module.MyDataset sampler=sequential"
)


def _plugin(name: str) -> str:
    """Advise to import a plug-in."""
    return (
        f"a plug-in reads it: type 'imports=[examples/plugins/penstock_{name}.py]' dataset={name} "
        f"dataset.storage.path=<folder>"
    )


def _labelled(name: str) -> str:
    return f"labels lie beside images: type dataset=image_folder dataset/annotations={name}"


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
    **dict.fromkeys(
        ("num_epochs", "num_train_epochs", "n_epochs", "max_epoch", "total_epochs"),
        "trainer.max_epochs",
    ),
    **dict.fromkeys(
        ("max_train_steps", "max_iters", "iterations", "num_steps"), "trainer.max_steps"
    ),
    **dict.fromkeys(
        ("per_device_train_batch_size", "train_batch_size", "batch_size_per_gpu", "bs"),
        "loader.batch_size",
    ),
    **dict.fromkeys(
        (
            "per_device_eval_batch_size",
            "val_batch_size",
            "validation_batch_size",
            "test_batch_size",
        ),
        "loader.eval_batch_size",
    ),
    **dict.fromkeys(("num_worker", "n_workers", "dataloader_num_workers"), "loader.num_workers"),
    **dict.fromkeys(("pin_mem", "dataloader_pin_memory"), "loader.pin_memory"),
    "dataloader_drop_last": "loader.drop_last",
    "dataloader_persistent_workers": "loader.persistent_workers",
    "dataloader_prefetch_factor": "loader.prefetch_factor",
    **dict.fromkeys(
        ("gradient_accumulation_steps", "accumulate_steps", "grad_accum_steps", "accum_iter"),
        "trainer.accumulate",
    ),
    **dict.fromkeys(
        ("max_grad_norm", "clip_grad", "clip_grad_norm", "grad_clip", "clipnorm"),
        "trainer.clip_norm",
    ),
    **dict.fromkeys(("lr", "lr0", "base_lr", "init_lr", "initial_learning_rate"), "optimizer.lr"),
    **dict.fromkeys(("ckpt_path", "resume_from_checkpoint", "resume_from"), "trainer.resume"),
    **dict.fromkeys(("seed_everything", "random_state", "random_seed", "manual_seed"), "seed"),
    **dict.fromkeys(
        ("log_every_n_steps", "logging_steps", "log_interval", "print_freq"), "trainer.log_every"
    ),
    **dict.fromkeys(
        ("save_steps", "save_freq", "save_interval", "every_n_train_steps"),
        "trainer.checkpoint_every",
    ),
    **dict.fromkeys(
        ("val_interval", "eval_interval", "eval_every", "val_every"), "trainer.validate_every"
    ),
    "metric_for_best_model": "trainer.monitor",
    "mode": "trainer.monitor_mode",
    **dict.fromkeys(
        ("default_root_dir", "save_dir", "log_dir", "logging_dir", "work_dir"), "outputs"
    ),
    **dict.fromkeys(("imgsz", "input_size", "crop_size", "resolution"), "augment.image_size"),
    **dict.fromkeys(
        ("data_path", "data_root", "train_dir", "train_path", "traindir"), "dataset.storage.path"
    ),
    **dict.fromkeys(("val_dir", "val_path", "valdir"), "dataset.val_path"),
    **dict.fromkeys(
        ("val_fraction", "val_split", "validation_split", "val_pct", "test_size"),
        "dataset.val_fraction",
    ),
    **dict.fromkeys(
        ("label_smoothing", "smoothing", "label_smoothing_factor"), "task.label_smoothing"
    ),
    **dict.fromkeys(("warmup_ratio", "warmup_frac"), "scheduler.warmup"),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps"), "scheduler.warmup"),
    **dict.fromkeys(("opt", "optimizer_name", "optimizer_type"), "optimizer"),
    **dict.fromkeys(("sched", "lr_scheduler_type", "scheduler_name"), "scheduler"),
    **dict.fromkeys(("criterion", "loss_fn"), "task"),
    **dict.fromkeys(("arch", "model_name", "backbone"), "model"),
    "report_to": "logger",
    "output_dir": "outputs",
    "hydra.run.dir": "outputs",
    "hydra.sweep.dir": "outputs",
}
"""Keys of other tools, and ours; see `elsewhere` for those that stand somewhere else."""

NOTES = {
    "per_device_train_batch_size": "of all ranks together",
    "batch_size_per_gpu": "of all ranks together",
    "per_device_eval_batch_size": "of all ranks together",
}
"""What else to know of a key that is called otherwise here."""

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
    **dict.fromkeys(
        (
            "gpus",
            "devices",
            "num_gpus",
            "num_nodes",
            "nproc_per_node",
            "num_processes",
            "ddp",
            "distributed",
            "world_size",
            "local_rank",
        ),
        _RANKS,
    ),
    "strategy": f"type trainer.strategy=ddp or trainer.strategy=fsdp; {_RANKS}",
    **dict.fromkeys(("fsdp", "deepspeed"), f"type trainer.strategy=fsdp; {_RANKS}"),
    **dict.fromkeys(("gpu", "cuda", "use_gpu"), "type trainer.device=cuda"),
    **dict.fromkeys(("no_cuda", "use_cpu"), "type trainer.device=cpu"),
    **dict.fromkeys(("mixup", "mixup_alpha"), f"{_STEP}mixup"),
    **dict.fromkeys(("cutmix", "cutmix_alpha"), f"{_STEP}cutmix"),
    **dict.fromkeys(("random_erasing", "reprob", "erasing"), f"{_STEP}random_erasing"),
    **dict.fromkeys(("hflip", "fliplr"), f"{_STEP}random_flip"),
    "color_jitter": f"{_STEP}color_jitter augment.device.normalize._after_=color_jitter",
    **dict.fromkeys(
        ("auto_augment", "aa", "randaugment", "trivialaugment"),
        "a stack of many draws: type augment=strong",
    ),
    "momentum": "type optimizer=sgd optimizer.momentum=0.9",
    **dict.fromkeys(
        ("min_lr", "lr_min", "eta_min", "lrf"),
        "the last rate is a share of the first: type scheduler=cosine scheduler.final=0.01",
    ),
    **dict.fromkeys(("cache", "cache_dataset"), "type dataset/cache=ram, or disk"),
    **dict.fromkeys(
        ("shuffle_buffer", "shuffle_size", "shuffle_buffer_size", "buffer_size"),
        "there is no buffer, records are shuffled fully: type sampler=random",
    ),
    **dict.fromkeys(
        ("s3", "gcs", "remote", "bucket"),
        "a path may be a URL: type dataset.storage.path=s3://bucket/photos",
    ),
    "kafka": _KAFKA,
    "iterable": _ITERABLE,
    "num_classes": "the data says how many there are: leave it away",
    "nc": "the data says how many there are: leave it away",
    "greater_is_better": "type trainer.monitor_mode=max",
    **dict.fromkeys(
        ("save_total_limit", "save_top_k", "load_best_model_at_end"),
        "the best and the last checkpoint are kept in any case: leave it away",
    ),
    **dict.fromkeys(("save_strategy", "enable_checkpointing"), "type trainer.save=false for none"),
    **dict.fromkeys(
        ("eval_strategy", "evaluation_strategy", "eval_steps", "do_eval"),
        "it is validated after whole epochs: type trainer.validate_every=1",
    ),
    "do_train": "python train.py does nothing else: leave it away",
    **dict.fromkeys(
        ("disable_tqdm", "progress_bar", "verbose"), "type trainer.progress=off, or bar"
    ),
    "val_check_interval": "it is validated after whole epochs: type trainer.validate_every=1",
    "fast_dev_run": "a preset does that: type debug=one_batch",
    "enable_progress_bar": "type trainer.progress=off, or bar",
    **dict.fromkeys(("ema", "use_ema", "model_ema", "model.ema", "trainer.ema"), _EMA),
    **dict.fromkeys(("ema_decay", "model_ema_decay", "trainer.ema_decay"), _EMA_DECAY),
    **dict.fromkeys(
        ("early_stopping", "early_stop", "trainer.early_stopping", "trainer.early_stop"),
        _EARLY_STOPPING,
    ),
    **dict.fromkeys(("patience", "trainer.patience", "early_stopping_patience"), _PATIENCE),
    **dict.fromkeys(("profile", "profiler", "trainer.profile", "trainer.profiler"), _PROFILE),
    "trainer.callbacks": "callbacks are a group of their own: type callback=early_stopping",
    **dict.fromkeys(
        ("warmup_epochs", "lr_warmup_epochs"),
        "warm-up is a share of the run, or a number of steps: type scheduler.warmup=0.05",
    ),
    "loader.pin_memory_device": "it follows trainer.device: leave it away",
    "loader.batch_sampler": _BATCH_SAMPLER,
    "loader.generator": "all draws follow from the seed: type seed=1",
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
    **{("dataset", name): "webdataset" for name in ("tar", "wds", "WebDataset")},
    **{("dataset", name): "npy_shards" for name in ("npy", "npz", "numpy")},
    **{("augment", name): "strong" for name in ("randaugment", "trivialaugment", "autoaugment")},
    **{("augment", name): "light" for name in ("weak", "default", "basic")},
    **{("task", name): "classification" for name in ("classify", "cross_entropy", "ce")},
    **{("task", name): "detection" for name in ("detect", "object_detection")},
    **{("task", name): "segmentation" for name in ("segment", "semantic_segmentation")},
    ("task", "pose"): "keypoints",
    ("task", "mse"): "regression",
    ("optimizer", "adamw_torch"): "adamw",
    ("scheduler", "onecycle"): "cosine",
    ("scheduler", "OneCycleLR"): "cosine",
    ("logger", "tensorboardx"): "tensorboard",
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
    ("sampler", "BatchSampler"): _BATCH_SAMPLER,
    ("sampler", "SubsetRandomSampler"): "type sampler=torch "
    "sampler.target=torch.utils.data.SubsetRandomSampler 'sampler.args.indices=[0,1,2]'",
    ("callback", "ModelCheckpoint"): "checkpoints are written in any case: type "
    "trainer.monitor=loss to choose what decides about the best",
    ("callback", "LearningRateMonitor"): "the rate is among the figures in any case: leave it away",
    ("dataset", "hf"): _HUB,
    ("dataset", "huggingface"): _HUB,
    ("dataset", "map"): "records have the name of their storage: type dataset=image_folder",
    ("dataset", "kafka"): _KAFKA,
    (
        "dataset",
        "rabbitmq",
    ): "type dataset=stream dataset/source=rabbitmq dataset.source.queue=photos",
    ("dataset", "iterable"): _ITERABLE,
    **{("dataset", name): _plugin("mds") for name in ("mds", "mosaicml", "streaming")},
    **{("dataset", name): _plugin("tfrecord") for name in ("tfrecord", "tfrecords", "tfds")},
    ("dataset", "zarr"): _plugin("zarr"),
    **{("dataset", name): _labelled(name) for name in ("coco", "voc", "yolo")},
    **{
        ("dataset", name): "a path may be a URL: type dataset=image_folder "
        "dataset.storage.path=s3://bucket/photos"
        for name in ("s3", "gcs")
    },
    ("dataset", "ffcv"): "images that are packed once, small, are as fast: type dataset=memmap",
    **{
        ("scheduler", name): "type scheduler=none "
        "scheduler._target_=torch.optim.lr_scheduler.LinearLR"
        for name in ("linear", "LinearLR")
    },
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


_PLACES = ("trainer", "loader", "optimizer", "scheduler", "dataset", "task", "model")
_THEIRS = ("train", "training", "data", "datamodule")


def elsewhere(key: str, table: Mapping[str, str]) -> str | None:
    """Look a key up in a table of hints, under its own place, none, or any other.

    People bring a name from another tool and guess where it stands: ``epochs``, ``trainer.epochs``.
    """
    place, _, leaf = key.rpartition(".")
    if place and place not in (*_PLACES, *_THEIRS):
        return table.get(key)
    names = (key, leaf, *(f"{place}.{leaf}" for place in _PLACES))
    return next((table[name] for name in names if name in table), None)


def _setting(leaf: str) -> str | None:
    """Find a setting of the trainer or the loader that has this name."""
    for place in ("trainer", "loader"):
        settings = find(f"settings/{place}")
        if settings is not None and leaf in signature(settings.target).parameters:
            return f"{place}.{leaf}"
    return None


def without_dashes(text: str) -> str:
    """Tell what to type for a flag of another program, ``--batch-size=32``; empty: nobody knows."""
    name, equals, value = text.lstrip("-").partition("=")
    key = name.replace("-", "_")
    said = elsewhere(key, INSTEAD)
    if said is not None or not key:
        return said or ""
    target = elsewhere(key, RENAMED) or _setting(key) or (key if "." in key else None)
    return f"type {target}={value if equals else '...'}" if target else ""


_PRECISIONS = {"16": "fp16", "16-mixed": "fp16", "fp16": "fp16", "true": "fp16", "32": "off",
               "bf16": "bf16", "bf16-mixed": "bf16", "false": "off"}  # fmt: skip
_VALUES = {("trainer.device", "gpu"): "cuda", ("trainer.device", "0"): "cuda:0"}
_PRESETS = ("experiment", "debug")
_OF_PRECISION = ("precision", "fp16", "amp", "use_amp", "mixed_precision")


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
    if value == "null" and not typed:  # a preset's, for another component
        return f"type ~{key} to take it away"
    known = list(siblings)
    step, _, leaf = key.rpartition(".")
    there = any(sibling.rpartition(".")[2] == leaf for sibling in known)
    said = INSTEAD.get(key) or (elsewhere(key, INSTEAD) if typed and not there else None)
    if said is not None:
        return said
    if key.removeprefix("trainer.") in _OF_PRECISION:
        return f"type trainer.amp={_PRECISIONS.get(str(value).lower(), 'bf16')}"
    if leaf in ("bf16", "half") and typed:
        return "type trainer.amp=bf16" if leaf == "bf16" else "type trainer.amp=fp16"
    if key in _PRESETS:
        return f"the file of {key} that is chosen needs a first line: # @package _global_"
    if said := _image_size(key, value, config.get("augment")):
        return said
    if leaf == "size" and f"{step}.height" in known:
        sizes = (value or "").strip("[]").split(",")
        return f"type {step}.height={sizes[0]} {step}.width={sizes[-1]}"
    target = RENAMED.get(key) or (elsewhere(key, RENAMED) if typed else None)
    if key == "dataset.storage.labels" and target not in known:
        target = None
    if target is None:
        groups = {name for name in known if isinstance(config.get(name), Mapping)}
        by_leaf = {each.rpartition(".")[2]: each for each in known if each not in groups}
        near = nearest(leaf, by_leaf)
        if near is not None:
            target = by_leaf[near]
        elif typed:
            target = _setting(leaf) or _elsewhere(leaf, config)
    if target is None or target == key:
        return f"leave {key} away" if typed else f"type ~{key} to take it away"
    if value is None:
        return f"type {target}=..."
    note = f" ({NOTES[leaf]})" if leaf in NOTES else ""
    return f"type {target}={_VALUES.get((target, str(value)), value)}{note}"


_SIZES = frozenset("size image_size img_size imgsz input_size crop_size resolution".split())


def _image_size(key: str, value: str | None, augment: Any) -> str | None:
    """Name the variables of `augment` that set the image size of all its stacks; None if unclear.

    Args:
        key: The unknown key.
        value: Its value as typed.
        augment: The augmentation with its variables.
    """
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
