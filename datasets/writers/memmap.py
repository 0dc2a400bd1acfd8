"""Records into arrays, a `.npy` file for each field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from datasets.formats.array_parts import RowFile, RowSpec, keep_rows, make_array
from datasets.index import write_whole
from datasets.parts import PackPlan, Part, PartSummary, Written, written_keys
from datasets.sample import Record
from pipeline.registry import register

CLASSES_NAME, KEYS_NAME = "classes.txt", "keys.txt"
_FILES = {"image": "images.npy", "label": "labels.npy"}
_NOT_FIELDS = ("images", "labels", "masks", "index", "key", "position", "epoch", "valid")
_CHANNELS = (1, 3, 4)


@register("writer", "memmap")
class MemmapWriter:
    """A folder of arrays with a row for each record: images.npy, labels.npy and so on.

    All records have the same fields, each of one shape and type: images are decoded pixels of
    one size. Class names are the lines of ``classes.txt``; keys, where they are not the numbers of
    the rows, those of ``keys.txt``.
    """

    version = 1
    part_records = 8192
    part_bytes = 1 << 26
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())
    storage_arguments: dict[str, Any] = {}  # noqa: RUF012

    def begin(self, folder: Path, plan: PackPlan) -> None:
        """Make the arrays at their full length."""
        specs = _specs(plan)
        for record in plan.samples:
            _check(record, specs, plan)
        for name in plan.class_names or ():
            _refuse_lines(name, "class name")
        for name, spec in specs.items():
            make_array(folder / _file(name), spec, len(plan))

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> Written:
        """Write rows into their places; those that are left out leave the last of them unused."""
        specs = _specs(plan)
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(
                    closing(RowFile(folder / _file(name), spec, len(plan), part.start))
                )
                for name, spec in specs.items()
            }
            for record in records:
                _check(record, specs, plan)
                _refuse_lines(record.key, "key")
                for name, file in files.items():
                    file.write(record.fields[name])
        return Written()

    def join_part(self, folder: Path, plan: PackPlan, summary: PartSummary) -> None:
        """The rows are in their places already."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        """Close the gaps that records left which could not be read; write names and keys."""
        ranges = [(summary.part.start, len(summary)) for summary in summaries]
        for name, spec in _specs(plan).items():
            keep_rows(folder / _file(name), spec, len(plan), ranges)
        if "label" in _specs(plan) and plan.class_names:
            _write_lines(folder / CLASSES_NAME, [name.encode() for name in plan.class_names])
        keys = written_keys(plan, summaries)
        if any(key != b"%d" % number for number, key in enumerate(keys)):
            _write_lines(folder / KEYS_NAME, keys)


def _specs(plan: PackPlan) -> dict[str, RowSpec]:
    """What every field is, as the first record has it.

    Raises:
        ValueError: No array can hold it.
    """
    if not plan.samples:
        raise ValueError("pack: memmap: none of the first records can be read; repair them")
    record = plan.samples[0]
    specs = {}
    for name, value in record.fields.items():
        spec = RowSpec.of(value)
        if spec is None or name in _NOT_FIELDS or not name.isidentifier():
            raise ValueError(
                f"pack: memmap: field {name!r} of {record.key!r} is {_shown(value)}, and arrays "
                f"hold numbers of one shape{_remedy(name, value)}"
            )
        if name == "image" and not (
            spec.dtype == "|u1" and len(spec.shape) == 3 and spec.shape[2] in _CHANNELS
        ):
            raise ValueError(
                f"pack: memmap: the image of {record.key!r} is {_shown(value)}, expected uint8 "
                f"[H, W, C] with 1, 3 or 4 channels; rename it with dataset.keys"
            )
        specs[name] = spec
    return specs


def _check(record: Record, specs: dict[str, RowSpec], plan: PackPlan) -> None:
    """Refuse a record that is not as the first one."""
    first = plan.samples[0]
    for name in sorted(specs.keys() ^ record.fields.keys()):
        one, other = (record, first) if name in record.fields else (first, record)
        raise ValueError(
            f"pack: memmap: {one.key!r} has a field {name!r} and {other.key!r} has none, and every "
            f"row has all fields; pack it as lmdb, or drop the field"
        )
    for name, spec in specs.items():
        if RowSpec.of(record.fields[name]) != spec:
            raise ValueError(
                f"pack: memmap: {name!r} is {_shown(first.fields[name])} in {first.key!r} and "
                f"{_shown(record.fields[name])} in {record.key!r}, and the rows of an array have "
                f"one shape and type; bring them to one, or pack it as lmdb"
            )


def _shown(value: Any) -> str:
    if hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def _remedy(name: str, value: Any) -> str:
    if name == "image" and not hasattr(value, "dtype"):
        return "; give pack.raw=1, for images of one size, or pack it as lmdb"
    return "; drop or rename it, or pack it as lmdb"


def _file(name: str) -> str:
    return _FILES.get(name, f"{name}.npy")


def _refuse_lines(text: str, what: str) -> None:
    if "\n" in text:
        raise ValueError(
            f"pack: memmap: the {what} {text!r} has a line break, and each is a line of a file; "
            f"rename it, or pack it as lmdb"
        )


def _write_lines(path: Path, lines: list[bytes]) -> None:
    content = b"".join(line + b"\n" for line in lines)
    write_whole(path, lambda file: file.write(content))
