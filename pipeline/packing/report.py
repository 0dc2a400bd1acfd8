"""Tell how packing goes, and at its end what the data is and how to train on it."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from penstock.core.contracts import Storage
from penstock.core.parts import PartSummary, written_labels
from penstock.core.sample import Record
from penstock.core.user_errors import program_of
from penstock.pipeline.config.composition import compose, composer_for

_MEASURE_S = 0.25
_MEASURE_READS = 2048
_BATCH = 32
_CLASSES = 8
_BALANCED = 1.5
_LINE_EVERY_S = 10.0
_KEPT = ("imports=", "task=", "task.")
_BYTES = (bytes, bytearray, memoryview)
_OF_IMAGES = ("image", "scaled")


def summary_lines(
    summaries: Sequence[PartSummary], class_names: tuple[str, ...] | None, width: int | None = None
) -> list[str]:
    """Describe the data: classes, sizes, and what was done with its images.

    Args:
        summaries: All parts.
        class_names: Names by id.
        width: Columns of the terminal; None: those that it has.
    """
    width = width or shutil.get_terminal_size().columns
    lines = []
    done = sum((Counter(summary.done) for summary in summaries), Counter[str]())
    if done:
        parts = ", ".join(f"{count:,} {what}" for what, count in done.most_common())
        lines.append(f"images: {parts}")
    labels = written_labels(summaries)
    if labels is not None and len(labels):
        lines += _class_lines(labels, class_names, width)
    sizes = np.concatenate([summary.sizes for summary in summaries])
    least, median, most, total = (
        decimal(int(size)) for size in (sizes.min(), np.median(sizes), sizes.max(), sizes.sum())
    )
    lines.append(f"sizes: {least} to {most}, median {median}, {total} in all")
    bad = sum(len(summary.bad) for summary in summaries)
    decoded = "" if done else " (no image was decoded)"
    lines.append(f"unreadable: {bad:,}{decoded}" if bad else f"unreadable: none{decoded}")
    return lines


def _class_lines(
    labels: NDArray[np.integer], class_names: tuple[str, ...] | None, width: int
) -> list[str]:
    counts = np.bincount(labels) if labels.min() >= 0 else np.unique(labels, return_counts=True)[1]
    if class_names is not None:
        counts = np.pad(counts, (0, max(0, len(class_names) - len(counts))))
    present = counts[counts > 0]
    empty = len(counts) - len(present)
    ratio = present.max() / present.min()
    what = "balanced" if ratio <= _BALANCED and not empty else f"not balanced, {ratio:,.1f} : 1"
    none = f", {empty:,} without any record" if empty else ""
    line = f"classes: {len(present):,}, from {present.min():,} to {present.max():,} records{none}"
    lines = [f"{line} ({what})"]
    order = np.argsort(-counts, kind="stable")
    shown = order if len(order) <= _CLASSES else [*order[: _CLASSES // 2], *order[-_CLASSES // 2 :]]
    names = [_short(class_names[i] if class_names else str(i), width // 3) for i in shown]
    most = max(map(len, names))
    digits = len(f"{counts.max():,}")
    for n, (i, name) in enumerate(zip(shown, names, strict=True)):
        if len(order) > _CLASSES and n == _CLASSES // 2:
            lines.append(f"  ... {len(order) - _CLASSES:,} more")
        lines.append(f"  {name:<{most}}  {counts[i]:>{digits},}")
    return lines


def reads_per_s(storage: Storage) -> float:
    """Random reads per second in one thread, as the page cache stands; a moment of them."""
    rng = np.random.default_rng(0)
    storage.read(rng.integers(0, len(storage), _BATCH))
    done, start = 0, time.perf_counter()
    while (seconds := time.perf_counter() - start) < _MEASURE_S and done < _MEASURE_READS:
        storage.read(rng.integers(0, len(storage), _BATCH))
        done += _BATCH
    return done / seconds


def speed_line(source: Storage, result: Storage) -> str:
    """Compare random reads of source and result."""
    before, after = reads_per_s(source), reads_per_s(result)
    return (
        f"random reads: {before:,.0f}/s from the source, {after:,.0f}/s from the result "
        f"({after / before:.1f} x), one thread, in the page cache"
    )


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 3] + "..."


class Screen:
    """Tells how much is done: in a bar on a terminal, else in a line from time to time.

    Args:
        what: What is done, such as ``train``.
        total: Records in all.
        done: Records that were done before.
    """

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._before, self._done = what, total, done, done
        self._bytes = 0
        self._start_s = time.monotonic()
        self._next_s = self._start_s + _LINE_EVERY_S
        self._bar = _bar(what, total, done) if sys.stdout.isatty() else None

    def add(self, records: int, size_bytes: int) -> None:
        """So many more are done."""
        self._done += records
        self._bytes += size_bytes
        now = time.monotonic()
        seconds = max(now - self._start_s, 1e-3)
        speed = f"{self._bytes / 1e6 / seconds:,.1f} MB/s"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=records, speed=speed)
        elif now >= self._next_s:
            self._next_s = now + _LINE_EVERY_S
            rate = (self._done - self._before) / seconds
            left = (self._total - self._done) / rate if rate else 0
            done = f"{self._done:,} of {self._total:,} records"
            print(f"{self._what}: {done}, {speed}, {left:,.0f} s left", flush=True)

    def close(self) -> None:
        """Leave the screen as it was."""
        if self._bar is not None:
            self._bar.stop()


def _bar(what: str, total: int, done: int) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    told = TextColumn("{task.description}"), BarColumn(12), MofNCompleteColumn()
    speed = TextColumn("{task.fields[speed]}"), TimeRemainingColumn(compact=True)
    bar = Progress(*told, *speed, console=Console(highlight=False), transient=True)
    bar.add_task(what, total=total, completed=done, speed="")
    bar.start()
    return bar


def training_line(
    source: Mapping[str, Any],
    typed: Sequence[str],
    *,
    to: str,
    place: Sequence[str],
    packed: Storage,
    only_pixels: bool,
) -> str:
    """Say how to train on what was packed, with the task and the decoder of the source.

    Args:
        source: The node ``dataset`` of the config that was packed with.
        typed: What was typed for packing.
        to: The storage that reads the result.
        place: Overrides that say where the result lies.
        packed: A part of the result, opened.
        only_pixels: All images of it are decoded, in the source's mode.
    """
    place = [_dataset(to, typed), *place]
    if source.get("annotations"):  # tasks ask such files for names that records have not
        return f"read it with: {shlex.join(place)}"
    first = packed.read(np.zeros(1, np.int64))[0]
    fields = first.fields if isinstance(first, Record) else {}
    words = [text for text in typed if text.startswith(_KEPT)]
    if not any(text.startswith("task=") for text in words):
        words += _task(fields)
    given = compose([*place, *words])
    before, default = _name(source["decode"]), _name(given["dataset"]["decode"])
    words += _decoder(before, default, typed, fields, only_pixels=only_pixels)
    sampler = given["sampler"]
    if _name(sampler) == "length_bucket" and sampler["column"] not in packed.index.columns:
        words.append("sampler=random")
    return f"train on it: {program_of('train')} {shlex.join([place[0], *words, *place[1:]])}"


def _dataset(to: str, typed: Sequence[str]) -> str:
    """Write the override that chooses the storage; a user's own is no option of ``dataset``."""
    imports = [text for text in typed if text.startswith("imports=")]
    is_option = to in composer_for(imports).options("dataset")
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


def _task(fields: Mapping[str, Any]) -> list[str]:
    """The task that records need which are no images, by the fields that tasks have by default."""
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
