"""What people type who know other tools, and what it is called here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.config.errors import nearest

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
    "trainer.precision": "trainer.amp",
    "trainer.gradient_clip_val": "trainer.clip_norm",
    "trainer.accumulate_grad_batches": "trainer.accumulate",
    "optimizer.learning_rate": "optimizer.lr",
    "optimizer.wd": "optimizer.weight_decay",
    "dataset.path": "dataset.storage.path",
    "dataset.root": "dataset.storage.path",
    "dataset.data_dir": "dataset.storage.path",
    "dataset.storage.root": "dataset.storage.path",
    "dataset.storage.data_dir": "dataset.storage.path",
    "dataset.labels": "dataset.storage.labels",
    "dataset.storage.labels": "dataset.storage.label_column",
    "data.path": "dataset.storage.path",
    "train.epochs": "trainer.max_epochs",
    "epochs": "trainer.max_epochs",
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
    "shuffle": "the order is the sampler's: type sampler=random or sampler=sequential",
    "loader.sampler": "the sampler is a group of its own: type sampler=weighted",
    "loader.collate_fn": "collating is a group of its own: type collate=pad",
    "loader.worker_init_fn": "it belongs to a data set of yours: dataset=torch "
    "dataset.worker_init_fn=my_module.my_function",
    "trainer.gpus": "start one process for each: torchrun --nproc-per-node=2 train.py",
    "trainer.devices": "start one process for each: torchrun --nproc-per-node=2 train.py",
    "gpus": "start one process for each: torchrun --nproc-per-node=2 train.py",
    "trainer.lr": "it belongs to the optimizer: type optimizer.lr=0.001",
    "trainer.seed": "the seed is at the top: type seed=1",
    "hydra.job.chdir": "the working directory is never changed",
    "hydra.output_subdir": "each run writes to a folder of its own under outputs=",
}
"""Keys of other tools that have no counterpart, and what to do instead."""

CHOICES: dict[tuple[str, str], str] = {
    ("dataset", "imagefolder"): "image_folder",
    ("dataset", "folder"): "image_folder",
    ("sampler", "shuffle"): "random",
    ("sampler", "balanced"): "weighted",
    ("collate", "default"): "stack",
    ("optimizer", "adamW"): "adamw",
    ("scheduler", "constant"): "none",
    ("scheduler", "cos"): "cosine",
    ("loader", "dataloader"): "torch",
    ("logger", "tb"): "tensorboard",
}
"""Options by the names they have elsewhere."""


def instead_of(
    key: str, value: str | None, siblings: Iterable[str], config: dict[str, Any], *, typed: bool
) -> str:
    """What to type instead of an unknown key.

    Args:
        key: The full key.
        value: What was given to it, as it is typed; None if it is too long to repeat.
        siblings: Full keys that are known at its place.
        config: The config, in whose other parts a key of this name may stand.
        typed: The user typed the key; otherwise it stands in a file.
    """
    if key in INSTEAD:
        return INSTEAD[key]
    known = list(siblings)
    leaf = key.rpartition(".")[2]
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
    """Whether a source of a mix that has no data set is nearly named as one that has."""
    node = sources[name]
    if not isinstance(node, dict) or _has_dataset(node):
        return False
    return nearest(name, [other for other in sources if _has_dataset(sources[other])]) is not None


def _has_dataset(source: Any) -> bool:
    dataset = source.get("dataset") if isinstance(source, dict) else None
    return dataset is not None and (not isinstance(dataset, dict) or "_target_" in dataset)


def _elsewhere(leaf: str, config: dict[str, Any], prefix: str = "") -> str | None:
    """The first key of this name anywhere in the config."""
    for name, value in config.items():
        if name == leaf and prefix:
            return f"{prefix}{name}"
        if isinstance(value, dict):
            found = _elsewhere(leaf, value, f"{prefix}{name}.")
            if found is not None:
                return found
    return None
