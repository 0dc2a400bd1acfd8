"""Check that the data of a config exists, and that its streams support the config."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.core.registry import checks, value_at
from penstock.core.user_errors import Problem, nearest_path
from penstock.datasets.files.byte_streams import is_read_once, missing_path

GENERATED = ("demo", "demo_sequences", "demo_sounds", "demo_table", "demo_prices")
"""Names of generated data, given in place of a path."""
_PARTS = ("dataset.val_path", "dataset.test_path")


@checks("dataset", needs=("dataset.storage", "dataset.source"))
def missing_data(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse paths that do not exist."""
    dataset = config["dataset"]
    has_path = "path" in (
        dataset.get("storage") or dataset.get("source") or {"path"}
    )  # else tables
    for key in ("dataset.storage.path", "dataset.source.path", *(_PARTS if has_path else ())):
        path = value_at(config, key)
        if path == "":
            yield Problem(key, f"'' given, expected a path; type {key}=. for the working directory")
        elif isinstance(path, str) and path not in GENERATED and missing_path(path):
            yield Problem(key, _not_found(key, path))


def _not_found(key: str, path: str) -> str:
    if (near := nearest_path(path)) is not None:
        return f"{path!r} not found; type {shlex.quote(f'{key}={near}')}"
    folder = next(each for each in Path(path).expanduser().absolute().parents if each.exists())
    text = f"{path!r} not found; the nearest existing folder is {str(folder)!r}"
    return f"{text}; type {key}=<folder or file>"


@checks("source", needs=("dataset.source",))
def source_of_stream(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Refuse parts and epochs that a stream lacks, and unordered reading of a queue.

    A checkpoint acknowledges the messages of a queue in the order of the queue.
    """
    source = config["dataset"]["source"]
    expected: dict[str, Any] = {} if {"path", "topic"} & source.keys() else dict.fromkeys(_PARTS)
    if "queue" in source:
        expected |= {"dataset.lanes": 1, "dataset.shuffle_window": 0}
    if is_read_once(str(source.get("path"))):
        expected["trainer.max_epochs"] = 1
    for key, value in expected.items():
        if (given := value_at(config, key)) != value:
            text = f"{given!r} given, {source['_target_']} is read once, as one part and in order"
            yield Problem(key, f"{text}; type {key}={'null' if value is None else value}")
