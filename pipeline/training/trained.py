"""Open a trained model with the data that it is tried on: what predict and evaluate share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import yaml
from torch import nn

from penstock.core.contracts import Task
from penstock.datasets.files.access import is_url
from penstock.pipeline.build import (
    Split,
    build_device_transforms,
    build_loader,
    build_settings,
    settle,
    splits_of,
)
from penstock.pipeline.config.errors import listing
from penstock.pipeline.config.saved import SAVED, fetched_run, run_behind
from penstock.pipeline.learning.building import build_model, build_task, fitted_tasks
from penstock.pipeline.learning.fields import task_field
from penstock.pipeline.learning.unlabelled import leave_target, opened_for_predictions
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.training.checkpoint import find_checkpoint, load_weights, read_checkpoint
from penstock.pipeline.training.distributed.world import World, joined
from penstock.pipeline.training.job import prepare_torch
from penstock.pipeline.training.loop import precision_of
from penstock.pipeline.training.output import check_output, spoken_lines
from penstock.pipeline.training.run_folder import (
    CLASSES,
    FIGURES,
    SOURCE,
    TABLE,
    kept_figures,
    read_classes,
    settled,
)
from penstock.pipeline.training.validation import warn_of_sizes

if TYPE_CHECKING:
    from penstock.pipeline.loader.loader import Loader


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trained model, and the data that it is tried on.

    Attributes:
        checkpoint: The file that the weights are from, or its URL.
        model: In evaluation, on its device.
        task: Told the classes that the model was trained on.
        batches: Every record once and in order, as evaluation sees them.
        precision: Makes the autocast context.
        split: The split that is tried.
        others: Splits of the same data that are left out.
        labelled: Whether the labels of the data are read; a prediction needs none.
        target: The column that a regression predicts, where batches have it under its own name.
        image_size: Height and width of the images it was trained on; None if unknown or varied.
    """

    checkpoint: Path | str
    model: nn.Module
    task: Task
    batches: DeviceQueue
    precision: Callable[[], AbstractContextManager[object]]
    split: Split
    others: tuple[Split, ...]
    labelled: bool
    target: str | None
    image_size: tuple[int, int] | None

    @property
    def data(self) -> str:
        """Say which data it is: all of it, or a split and how the others are had."""
        if not self.others:
            return "all of the data"
        return f"the split {self.split}; the others: split={' or '.join(self.others)}"


@contextmanager
def opened_trained(
    config: Mapping[str, Any], *, command: str, endings: Sequence[str]
) -> Iterator[tuple[World, Trained, Path]]:
    """Join the ranks, look whether the output may be written, and open what is tried.

    Args:
        config: Plain and checked: the run's, where the checkpoint is of one, maybe with other data.
        command: Its settings say ``checkpoint``, ``split``, ``output`` and ``overwrite``.
        endings: What the output may end in.

    Yields:
        The ranks, the model with its data, and the output.

    Raises:
        ValueError: The checkpoint, the data or the output cannot be used, or they do not go
            together; on every rank.
    """
    asked, trainer = build_settings(config[command]), build_settings(config["trainer"])
    key, output = f"{command}.output", Path(asked.output).expanduser()
    with ExitStack() as stack:
        world = stack.enter_context(joined(trainer.device, trainer.timeout_s))
        stack.enter_context(spoken_lines(world.rank))
        world.on_main(lambda: check_output(key, [output], endings, overwrite=asked.overwrite))
        trained = _open(config, command, world, stack)
        yield world, trained, output
        if world.is_main:
            steps = config["augment"]["eval"]
            warn_of_sizes(trained.image_size, trained.batches.image_size, steps)


def _open(config: Mapping[str, Any], command: str, world: World, stack: ExitStack) -> Trained:
    """Build a model as its run did, load its weights, and open the data to try it on."""
    asked, trainer = build_settings(config[command]), build_settings(config["trainer"])
    checkpoint = find_checkpoint(asked.checkpoint, f"{command}.checkpoint")
    content = read_checkpoint(checkpoint)
    prepare_torch(trainer, world.device)
    run_dir, predicts = run_of(checkpoint), command == "predict"
    read, group = reading_config(config, run_dir, world.size)
    target = None
    if predicts:
        target = leave_target(read["dataset"])
        read["loader"]["max_error_rate"] = 1.0  # a record that fails has a row that says so
    names = read_classes(run_dir) if run_dir else {}
    saved = _saved_data(run_dir)
    own = bool(saved) and _place(saved) == _place(read["dataset"])
    # Its own data is what it began with.
    data = world.on_main(lambda: settled(read, run_dir) if own and run_dir else settle(read))
    split, others = _chosen(data, asked.split, None if own else saved)

    def opened(config: Mapping[str, Any], *, labelled: bool = True) -> Loader:
        loader = build_loader(
            config,
            split,
            rank=world.rank,
            world_size=world.size,
            group=group,
            classes={} if own or not labelled else names,
            located=predicts,
        )
        try:
            for field, trained in names.items() if labelled else ():
                _refuse_other_classes(field, loader.classes_of(field), trained, config["dataset"])
        except ValueError:
            loader.close()
            raise
        return loader

    labelled = True
    if predicts and run_dir is not None:
        loader, labelled = opened_for_predictions(opened, data, own=own, target=target)
    else:
        loader = opened(data)
    stack.callback(loader.close)

    def classes_of(field: str) -> tuple[str, ...] | None:
        return names.get(field) or loader.classes_of(field)

    told = classes_of(task_field(config))
    known = {"table": loader.table, "classes_of": classes_of}
    model = build_model(config, len(told or ()), **known, begins=False)
    load_weights(
        model,
        content["model"],
        where=f"{command}.checkpoint: {checkpoint} does not fit this model",
        remedy="give the model and the data that it was trained with",
    )
    task = build_task(config, len(told or ()), told, **known)
    figures = world.on_main(lambda: kept_figures(task, loader.dataset, run_dir))
    for name, each in fitted_tasks(task).items():
        each.learn(figures[name])
    layout = torch.channels_last if trainer.channels_last else torch.preserve_format
    return Trained(
        checkpoint=checkpoint,
        model=model.to(device=world.device, memory_format=layout).eval(),  # type: ignore[call-overload]
        task=task,
        batches=DeviceQueue(loader, world.device, build_device_transforms(config, "val")),
        precision=precision_of(trainer, world.device),
        split=split,
        others=others,
        labelled=labelled,
        target=target,
        image_size=content.get("state", {}).get("image_size"),
    )


def run_of(checkpoint: Path | str) -> Path | None:
    """The folder of the run that a checkpoint lies in; None where it lies elsewhere.

    Of a run behind a URL it is a folder of this process, with copies of what evaluation reads.
    """
    if isinstance(checkpoint, str):
        run = run_behind(checkpoint)
        return None if run is None else fetched_run(run, (SAVED, CLASSES, TABLE, FIGURES, SOURCE))
    folder = checkpoint.resolve().parent.parent
    return folder if (folder / SAVED).is_file() else None


def reading_config(
    config: Mapping[str, Any], run_dir: Path | None, world_size: int
) -> tuple[dict[str, Any], int]:
    """The config with its data read as in evaluation, whichever split it is of.

    Every record once and in order, in whole batches to a rank: a model's outputs may differ in
    their last bits by how many rows it gets at once, so that ranks get what a single process
    would.

    Args:
        config: The plain config.
        run_dir: Of the run, whose figures scale a table; None: the data's own do.
        world_size: Number of ranks.

    Returns:
        The config, and how many positions stay together.
    """
    read = deepcopy(dict(config))
    read["augment"] |= {"train": read["augment"]["eval"], "device": {}}
    read["sampler"] = {"_target_": "sampler/sequential"}
    loader = read["loader"]
    rows = loader["eval_batch_size"] or loader["batch_size"]
    loader |= {
        "batch_size": rows * world_size,
        "eval_batch_size": None,
        "drop_last": False,
        "on_error": loader["eval_on_error"],
    }
    decode = read["dataset"].get("decode") or {}
    if decode.get("_target_") == "decode/table" and run_dir and (run_dir / TABLE).exists():
        decode["statistics"] = decode["statistics"] or str(run_dir / TABLE)
    return read, rows


def _saved_data(run_dir: Path | None) -> dict[str, Any]:
    """The data of a run, as its config says it; nothing is known of what is no run's."""
    if run_dir is None:
        return {}
    text = (run_dir / SAVED).read_text(encoding="utf-8")
    return yaml.safe_load(text)["dataset"]


def _place(dataset: Mapping[str, Any]) -> Any:
    """Say where data lies: what is at the same place as a run's was trained on."""
    node = dataset.get("storage") or dataset.get("source") or {}
    if isinstance(path := node.get("path"), str):
        return path if is_url(path) else os.path.realpath(os.path.expanduser(path))
    if isinstance(url := node.get("url"), str):  # a database, however it is reached
        parts = urlsplit(os.environ.get(url.removeprefix("env:"), url))
        place = parts.netloc.rpartition("@")[2], parts.path
        return [*place, *(node.get(name) for name in ("table", "query"))]
    return [node, *(dataset.get(name) for name in ("target", "args", "sources"))]


def _chosen(
    config: Mapping[str, Any], split: Split | None, before: Mapping[str, Any] | None
) -> tuple[Split, tuple[Split, ...]]:
    """The split to try, and those that are left out.

    Without one asked for, it is the test split, or where there is none what is validated on; of
    data that a run did not have, and that has no splits, it is everything.

    Args:
        config: Its ``dataset`` is changed where everything is to be tried.
        split: The split that was asked for.
        before: The run's data, where this is other data; None: it is the run's.
    """
    dataset, there = config["dataset"], splits_of(config)
    if split is None and not there and before is not None and "val_fraction" in dataset:
        if dataset["val_fraction"] == before.get("val_fraction", 0.2):  # nobody said otherwise
            dataset["val_fraction"] = 1.0
    if not there and dataset.get("val_fraction") == 1 and split in (None, "val"):
        return "val", ()
    split = split or ("test" if "test" in there else "val")
    known: tuple[Split, ...] = ("train", "val", "test")
    return split, tuple(
        each for each in known if each != split and (each != "test" or each in there)
    )


def _refuse_other_classes(
    field: str, found: Sequence[str] | None, trained: Sequence[str], dataset: Mapping[str, Any]
) -> None:
    """Refuse data whose class ids mean other classes than the model's, or nobody knows what."""
    # A storage without names has no labels; a stream or a torch data set may have all the same.
    if tuple(found or ()) == tuple(trained) or (found is None and "storage" in dataset):
        return
    part = next((f".{name}" for name in ("storage", "source") if name in dataset), "")
    raise ValueError(
        f"the data's classes ({field}) are {listing(found) if found else 'not named'}, and the "
        f"model was trained on {listing(trained)}; give data of the same, or, if its ids mean "
        f"these, type dataset{part}.classes=[{','.join(trained)}]"
    )
