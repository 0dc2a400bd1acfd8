"""Combinations of components that cannot work, each part being right by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from pipeline import registry
from pipeline.config.errors import Problem
from pipeline.config.mixes import mixing, of_sources
from pipeline.config.sources import MIX

GENERATED = ("demo", "demo_sequences", "demo_table", "demo_prices")
"""What stands for data that is generated, in place of a path."""

_PATTERN = re.compile(r"[*?\[{]|://")

Rule = Callable[[dict[str, Any]], Iterator[Problem]]


def check_combinations(config: dict[str, Any], wrong: Collection[str] = ()) -> list[Problem]:
    """Every combination in a config that cannot work.

    Args:
        config: The config as far as it could be checked.
        wrong: Keys that have been reported; rules about them or what is below are left out.
    """
    found = _of_rules(config, wrong, RULES)
    if not any(_touches(key, bad) for key in ("dataset", "dataset.sources") for bad in wrong):
        of_data = {rule: RULES[rule] for rule in _OF_DATA}
        found += of_sources(config, wrong, lambda source, bad: _of_rules(source, bad, of_data))
    return found


def _of_rules(
    config: dict[str, Any], wrong: Collection[str], rules: dict[Rule, tuple[str, ...]]
) -> list[Problem]:
    return [
        problem
        for rule, keys in rules.items()
        if not any(_touches(key, bad) for key in keys for bad in wrong)
        for problem in rule(config)
    ]


def _touches(key: str, wrong: str) -> bool:
    """Whether a mistake at `wrong` leaves nothing to say about `key`."""
    return wrong == "" or f"{key}.".startswith(f"{wrong}.") or wrong == f"{key}._target_"


def missing_data(config: dict[str, Any]) -> Iterator[Problem]:
    """A path to the user's data that does not exist; demos are generated, a pattern is no path."""
    storage = config["dataset"].get("storage") or {}
    path = storage.get("path")
    if path == "":
        yield _nothing("dataset.storage.path")
    elif isinstance(path, str) and path not in GENERATED and not _PATTERN.search(path):
        if not Path(path).expanduser().exists():
            parent = Path(path).expanduser().absolute()
            while not parent.exists():
                parent = parent.parent
            yield Problem(
                "dataset.storage.path",
                f"{path!r} does not exist (of it there is {str(parent)!r}); type "
                f"dataset.storage.path=<folder or file>, or demo for the generated set",
            )


def empty_paths(config: dict[str, Any]) -> Iterator[Problem]:
    """Folders of an empty name, which would be the working directory."""
    for key in ("data_dir", "outputs"):
        if config[key] == "":
            yield _nothing(key)
    if config["trainer"].get("resume") == "":
        yield _nothing("trainer.resume", instead="trainer.resume=null to start anew")


def _nothing(key: str, *, instead: str | None = None) -> Problem:
    here = instead or f"{key}=. for the working directory"
    return Problem(
        key, f"'' given, which names no folder (a variable that is not set?); type {here}"
    )


def torch_dataset(config: dict[str, Any]) -> Iterator[Problem]:
    """A torch data set that is not there, and a stream under a sampler that needs an index."""
    node = config["dataset"]
    if node["_target_"] != "dataset/torch":
        return
    from pipeline.config.allowed import resolve_class

    key = "dataset.target"
    try:
        found = resolve_class(node["target"], bases=("torch.utils.data.Dataset",))
    except ValueError as error:
        yield Problem(key, f"{error}; type {key}=my_module.MyDataset (a file: add "
                      f"imports=[./my_module.py])")  # fmt: skip
        return
    for name in ("args", "val_args"):
        yield from _arguments(found, node.get(name), f"dataset.{name}")
    stream = any(base.__qualname__ == "IterableDataset" for base in found.__mro__)
    sampler = config["sampler"]["_target_"]
    if stream and sampler not in ("sampler/sequential", "sampler/random"):
        yield Problem("sampler", f"{sampler} needs a data set with an index, and "
                      f"{node['target']} is a stream; type sampler=sequential")  # fmt: skip
    elif stream and sampler == "sampler/random":
        yield Problem("sampler", f"{node['target']} is a stream, which is read in its own order "
                      f"and cannot be shuffled; type sampler=sequential")  # fmt: skip


def foreign_parts(config: dict[str, Any]) -> Iterator[Problem]:
    """A storage where a data set takes a source, or the other way round."""
    dataset = config["dataset"]
    component = registry.find(dataset["_target_"])
    if component is None:
        return
    takes = inspect.signature(component.target).parameters
    for part, remedy in (("storage", "image_folder"), ("source", "stream")):
        if part in dataset and part not in takes:
            if dataset["_target_"] == MIX:
                source = next(iter(dataset["sources"]), "<name>")
                at = f"dataset.sources.{source}.dataset.{part}"
                how = f"its sources have their own; type {at}.path=..."
            else:
                how = f"leave it away, or type dataset={remedy}"
            yield Problem(f"dataset.{part}", f"{component.target_name} takes no {part}; {how}")


def stream(config: dict[str, Any]) -> Iterator[Problem]:
    """A stream under a sampler, one that is not there, and one that would be read twice."""
    dataset = config["dataset"]
    if dataset["_target_"] != "dataset/stream":
        return
    sampler = config["sampler"]["_target_"]
    if sampler != "sampler/sequential":
        yield Problem("sampler", f"{sampler} needs a data set with an index, and a stream is read "
                      f"in its own order; type sampler=sequential, and let it shuffle by "
                      f"dataset.shuffle and dataset.shuffle_window")  # fmt: skip
    path = (dataset.get("source") or {}).get("path")
    if not isinstance(path, str) or path == "demo":
        return
    from datasets.byte_shards import missing_path
    from datasets.formats.byte_streams import is_read_once

    key = "dataset.source.path"
    try:
        if missing_path(path):
            yield Problem(key, f"{path!r} does not exist; type {key}=<file, folder or pattern>, "
                          f"or demo for the generated set")  # fmt: skip
    except ValueError as error:
        yield Problem(key, str(error))
    epochs = config["trainer"].get("max_epochs")
    if is_read_once(path) and epochs != 1:
        yield Problem("trainer.max_epochs", f"{epochs} given, and {path!r} can be read once; type "
                      f"trainer.max_epochs=1")  # fmt: skip


def _arguments(found: type, arguments: Any, key: str) -> Iterator[Problem]:
    """Arguments that the user's class does not take, or lacks."""
    if not isinstance(arguments, dict):
        return
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        names = ", ".join(inspect.signature(found).parameters)
        yield Problem(key, f"{found.__qualname__} takes ({names}): {error}")


def empty_run(config: dict[str, Any]) -> Iterator[Problem]:
    """Nothing to decode with where bytes are read."""
    dataset = config["dataset"]
    if "storage" in dataset and dataset.get("decode", ...) is None:
        yield Problem("dataset.decode", "null given, but records must become samples; type "
                      "dataset/decode=image")  # fmt: skip


def caches(config: dict[str, Any]) -> Iterator[Problem]:
    """A cache of what is held in memory anyway, and amounts that are none."""
    from datasets.caching.byte_limits import parse_bytes

    dataset = config["dataset"]
    cache = dataset.get("cache")
    if not isinstance(cache, dict):
        return
    in_memory = cache.get("_target_") == "cache/ram"
    if in_memory and dataset["_target_"] == "dataset/eager":
        yield Problem("dataset/cache", "ram given, but dataset=eager decodes everything into "
                      "memory once and reads nothing again; type dataset/cache=none")  # fmt: skip
    if in_memory or cache.get("_target_") == "cache/disk":
        try:
            parse_bytes(cache.get("max_bytes", 1), whole=1 << 40 if in_memory else None)
        except ValueError as error:
            text = str(error).partition(": ")[2]
            yield Problem("dataset.cache.max_bytes", f"{text}; type dataset.cache.max_bytes=4GB")


def classes_in_batches(config: dict[str, Any]) -> Iterator[Problem]:
    """Batches of classes where there are none, and sizes that do not come out even."""
    sampler, storage = config["sampler"], config["dataset"].get("storage") or {}
    name = sampler["_target_"].partition("/")[2]
    if name not in ("identity", "balanced_batch"):
        return
    if sampler["column"] == "label" and storage.get("labels", "") is None:
        yield Problem("sampler.column", f"'label' given for sampler={name}, and the data has no "
                      f"labels; type dataset.storage.labels=folder, or sampler.column=identity "
                      f"with dataset/annotations=filename")  # fmt: skip
    batch_size = config["loader"].get("batch_size")
    if name != "identity" or not isinstance(batch_size, int):
        return
    together = sampler["images_per_identity"]
    size = (sampler["identities"] or max(batch_size // together, 1)) * together
    if size != batch_size:
        yield Problem("loader.batch_size", f"{batch_size} given, and {size // together} identities "
                      f"with {together} images each (sampler.images_per_identity) are {size}; type "
                      f"loader.batch_size={size}")  # fmt: skip


def plateau_by_steps(config: dict[str, Any]) -> Iterator[Problem]:
    """A schedule that waits for evaluations, counted in steps, which have none."""
    target = (config["scheduler"] or {}).get("_target_")
    interval = config["trainer"].get("scheduler_interval")
    if target == "torch.optim.lr_scheduler.ReduceLROnPlateau" and interval == "step":
        yield Problem("trainer.scheduler_interval", "'step' given, and ReduceLROnPlateau looks at "
                      "the metrics of an epoch; type trainer.scheduler_interval=epoch")  # fmt: skip


def colours_after_normalize(config: dict[str, Any]) -> Iterator[Problem]:
    """Steps that compute with colours behind the one that takes the mean away."""
    from transforms.cpu.stack import ordered_steps

    try:
        steps = ordered_steps(config["augment"].get("device") or {})
    except ValueError:  # said of the step itself
        return
    normalized = None
    for name, node in steps.items():
        target = node.get("_target_")
        if target == "batch_transform/normalize":
            normalized = name
        elif normalized and target in _OF_COLOURS:
            yield Problem(f"augment.device.{name}", f"stands behind {normalized!r}, and computes "
                          f"with colours from 0 to 1; type "
                          f"augment.device.{normalized}._after_={name}")  # fmt: skip


_OF_COLOURS = tuple(f"batch_transform/{name}" for name in ("color_jitter", "grayscale", "kornia"))


_OF_DATA: tuple[Rule, ...] = (missing_data, torch_dataset, foreign_parts, empty_run, caches)
"""What holds of the sources of a mix too."""

RULES: dict[Rule, tuple[str, ...]] = {
    missing_data: ("dataset", "dataset.storage", "dataset.storage.path"),
    empty_paths: ("data_dir", "outputs", "trainer.resume"),
    torch_dataset: ("dataset", "dataset.target", "sampler"),
    foreign_parts: ("dataset",),
    stream: ("dataset", "dataset.source", "dataset.source.path", "sampler", "trainer.max_epochs"),
    plateau_by_steps: ("scheduler", "trainer.scheduler_interval"),
    colours_after_normalize: ("augment", "augment.device"),
    empty_run: ("dataset", "dataset.decode"),
    classes_in_batches: (
        "dataset", "dataset.storage", "sampler", "sampler.identities",
        "sampler.images_per_identity", "loader", "loader.batch_size",
    ),
    caches: ("dataset", "dataset.cache", "dataset.cache.max_bytes"),
    mixing: ("dataset", "dataset.sources", "sampler"),
}  # fmt: skip
"""The rules, and the keys that must be right for them to make sense."""
