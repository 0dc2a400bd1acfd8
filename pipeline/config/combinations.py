"""Combinations of components that cannot work, each part being right by itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.config.errors import Problem

Rule = Callable[[dict[str, Any]], Iterator[Problem]]


def check_combinations(config: dict[str, Any]) -> list[Problem]:
    """Every combination in a checked config that cannot work."""
    return [problem for rule in RULES for problem in rule(config)]


def missing_data(config: dict[str, Any]) -> Iterator[Problem]:
    """A path to the user's data that does not exist; `demo` is generated."""
    storage = config["dataset"].get("storage") or {}
    path = storage.get("path")
    if isinstance(path, str) and path != "demo" and "://" not in path:
        if not Path(path).expanduser().exists():
            parent = Path(path).expanduser().absolute()
            while not parent.exists():
                parent = parent.parent
            yield Problem(
                "dataset.storage.path",
                f"{path!r} does not exist (of it there is {str(parent)!r}); type "
                f"dataset.storage.path=<folder or file>, or demo for the generated set",
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


RULES: tuple[Rule, ...] = (missing_data, torch_dataset, empty_run)
