"""Tell how packing goes, and at its end what the data is and how to train on it."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from penstock.core.contracts import Storage
from penstock.core.parts import PartSummary, written_labels
from penstock.core.sample import Record
from penstock.pipeline.config.compose import compose, prepare
from penstock.pipeline.config.options import options_of

_BALANCED = 1.5
_LINE_EVERY_S = 10.0
_KEPT = ("imports=", "task=", "task.")
_BYTES = (bytes, bytearray, memoryview)
_OF_IMAGES = ("image", "scaled")


def summary_lines(
    summaries: Sequence[PartSummary], class_names: tuple[str, ...] | None
) -> list[str]:
    """Describe the data: classes and sizes.

    Args:
        summaries: All parts.
        class_names: Names by id.
    """
    lines = []
    labels = written_labels(summaries)
    if labels is not None and len(labels):
        lines.append(_class_line(labels, class_names))
    sizes = np.concatenate([summary.sizes for summary in summaries])
    least, median, most, total = (
        decimal(int(size)) for size in (sizes.min(), np.median(sizes), sizes.max(), sizes.sum())
    )
    lines.append(f"sizes: {least} to {most}, median {median}, {total} in all")
    bad = sum(len(summary.bad) for summary in summaries)
    lines.append(f"unreadable: {bad or 'none'}")
    return lines


def _class_line(labels: NDArray[np.integer], class_names: tuple[str, ...] | None) -> str:
    counts = np.unique(labels, return_counts=True)[1]
    known = len(class_names) if class_names else int(labels.max()) + 1
    ratio, empty = counts.max() / counts.min(), max(0, known - len(counts))
    what = "balanced" if ratio <= _BALANCED and not empty else f"not balanced, {ratio:,.1f} : 1"
    none = f", {empty:,} without any record" if empty else ""
    many = f"{len(counts):,}, from {counts.min():,} to {counts.max():,} records{none}"
    return f"classes: {many} ({what})"


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class Screen:
    """Tells how much is done: in a bar on a terminal, else in a line from time to time.

    Args:
        what: What is done, such as ``train``.
        total: Records or files in all; None: nobody knows.
        done: How many were done before.
        of: What is counted.
        shown: Whether anything is told at all.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        done: int = 0,
        *,
        of: str = "records",
        shown: bool = True,
    ) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(compact=True),
            console=Console(highlight=False),
            transient=True,
            disable=not (shown and sys.stdout.isatty()),
        )
        task = self._bar.add_task(what, total=total, completed=done, speed="")
        self._task, self._of, self._bytes = self._bar.tasks[task], of, 0
        self._next_s = time.monotonic() + _LINE_EVERY_S if shown else math.inf

    def add(self, count: int, size_bytes: int = 0) -> None:
        """So many more are done."""
        task = self._task
        self._bytes += size_bytes
        speed = f"{self._bytes / 1e6 / max(task.elapsed or 0, 1e-3):,.1f} MB/s" * bool(self._bytes)
        self._bar.update(task.id, advance=count, speed=speed)
        if self._bar.disable and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _LINE_EVERY_S
            total = "" if task.total is None else f" of {task.total:,}"
            done = [f"{task.completed:,}{total} {self._of}", *filter(None, [speed])]
            if task.time_remaining is not None:
                done.append(f"{task.time_remaining:,.0f} s left")
            print(f"{task.description}: {', '.join(done)}", flush=True)

    def __enter__(self) -> Screen:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the screen as it was."""
        self._bar.stop()


def training_line(
    config: Mapping[str, Any],
    typed: Sequence[str],
    *,
    to: str,
    place: Sequence[str],
    packed: Storage,
    has_names: bool,
    only_pixels: bool,
) -> str:
    """Say how to train on what was packed, with the task and the decoder of the source.

    Args:
        config: The config that was packed with.
        typed: What was typed for packing.
        to: The storage that reads the result.
        place: Overrides that say where the result lies.
        packed: A part of the result, opened.
        has_names: Annotated classes have names.
        only_pixels: All images of it are decoded, in the source's mode.
    """
    place, source = [_dataset(to, typed), *place], config["dataset"]
    if source.get("annotations") and not has_names:  # by which a task knows how many there are
        return f"read it with: {shlex.join(place)}"
    first = packed.read(np.zeros(1, np.int64))[0]
    fields = first.fields if isinstance(first, Record) else {}
    words = [text for text in typed if text.startswith(_KEPT)]
    if not any(text.startswith("task=") for text in words):
        words += _task(config["task"], fields)
    if source.get("annotations"):  # names of classes lie beside the records
        words.append("dataset/annotations=in_records")
    given = compose([*place, *words])
    before, default = _name(source["decode"]), _name(given["dataset"]["decode"])
    words += _decoder(before, default, typed, fields, only_pixels=only_pixels)
    sampler = given["sampler"]
    if _name(sampler) == "length_bucket" and sampler["column"] not in packed.index.columns:
        words.append("sampler=random")
    return f"train on it: penstock train {shlex.join([place[0], *words, *place[1:]])}"


def _dataset(to: str, typed: Sequence[str]) -> str:
    """Write the override that chooses the storage; a user's own is no option of ``dataset``."""
    imports = [text for text in typed if text.startswith("imports=")]
    prepare(imports)
    is_option = to in options_of("dataset")
    return f"dataset={to}" if is_option else f"dataset/storage={to}"


def _decoder(
    before: str, default: str, typed: Sequence[str], fields: Mapping[str, Any], *, only_pixels: bool
) -> list[str]:
    """Write the overrides of the decoder, where `default` is that of the result's option."""
    encoded = any(isinstance(fields.get(name), _BYTES) for name in ("image", "mask"))
    wanted = before
    if encoded and before == "raw":
        wanted = "image"
    elif "image" not in fields and before in _OF_IMAGES:
        wanted = "raw" if default in _OF_IMAGES else default
    elif only_pixels and not encoded and default == "raw":
        wanted = default
    words = [] if wanted == default else [f"dataset/decode={wanted}"]
    if wanted == before:
        words += [text for text in typed if text.startswith("dataset.decode.")]
    return words


def _task(task: Mapping[str, Any], fields: Mapping[str, Any]) -> list[str]:
    """The task that was chosen by an experiment; or that records need which are no images."""
    if "_target_" in task and _name(task) != "classification":
        return [f"task={_name(task)}"]
    if "image" in fields or "label" not in fields:
        return []
    if "tokens" in fields:
        return ["task=sequence"]
    return ["task=table"] if len(fields) > 1 and all(map(_is_single, fields.values())) else []


def _is_single(value: Any) -> bool:
    is_plain = value is None or isinstance(value, bool | int | float | str | np.generic)
    return is_plain or (isinstance(value, np.ndarray) and not value.ndim)


def _name(node: Mapping[str, Any]) -> str:
    return str(node["_target_"]).rpartition("/")[2]
