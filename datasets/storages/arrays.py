"""Read and write rows of arrays in `.npy`, `.npz` and `.pt` files."""

from __future__ import annotations

import io
import math
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import field_name, look_at_header, map_npy, save_npy, view_npy
from penstock.core.contracts import Writer
from penstock.core.files import write_lines, writing
from penstock.core.parts import PackPlan, Part, PartSummary
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.array_shards.shards import Columns, ShardKey, Unread
from penstock.datasets.array_shards.stacking import stacked
from penstock.datasets.array_shards.storage import ArrayStorage
from penstock.datasets.files.access import RangeFile, RangeStream, retried
from penstock.datasets.files.zip_members import (
    DEFLATED,
    Member,
    list_members,
    read_head,
    read_member,
)
from penstock.datasets.records.labels import CLASSES_NAME
from penstock.datasets.writing import refuse_class_names

# NumPy accepts headers of at most 10,000 bytes, after the local header of a member.
_HEAD_BYTES = 1 << 17
_FILES = {"image": "images.npy", "label": "labels.npy", "key": "keys.npy"}


@register("storage", "npy_shards")
class NpyShards(ArrayStorage):
    """Arrays in many `.npy` and `.npz` files; nothing is ever unpickled.

    A `.npy` file holds one field [N, ...] of some samples: ``images_007.npy`` is the field
    ``image`` of shard 007, and ``labels_007.npy``, ``images/007.npy`` or ``007/images.npy`` belong
    to it. An `.npz` file is a shard with a member for each field; uncompressed members are mapped.
    All shards have the same fields and types; if their shapes agree too, batches are read as a
    whole. ``keys`` holds the keys; the default is row numbers.

    Args:
        path: A folder, a file, or a pattern.
        classes: Class names by id; None: the lines of ``classes.txt``, or the numbers.
    """

    name = "npy_shards"
    endings: ClassVar[tuple[str, ...]] = (".npy", ".npz")

    def columns(self, path: str, root: str) -> Columns:
        if not retried(lambda: os.stat(path).st_size, path=path, root=root):
            raise RecordError("is empty; copy it again")
        memory = retried(lambda: np.memmap(path, np.uint8, "r"), path=path, root=root)
        file = RangeFile(path, root=root)
        view: Any = RangeStream(file, len(memory))
        if not path.lower().endswith(".npz"):
            return {None: _array(memory, *look_at_header(view, len(memory), "it"))}
        columns: dict[str | None, Any] = {}
        for member in list_members(view):
            name, size = member.name.removesuffix(".npy"), member.size_bytes
            head, start = read_head(file, member, _HEAD_BYTES)
            shape, dtype, at = look_at_header(io.BytesIO(head), size, member.name)
            if member.method == DEFLATED:
                columns[name] = Unread(np.dtype(dtype), shape, partial(_content, file, member))
            else:
                columns[name] = _array(memory, shape, dtype, start + at)
        return columns


def _content(file: RangeFile, member: Member) -> NDArray[Any]:
    return view_npy(read_member(file, member))


def _array(memory: Any, shape: tuple[int, ...], dtype: str, offset: int) -> NDArray[Any]:
    return np.frombuffer(memory, dtype, math.prod(shape), offset).reshape(shape)


@register("storage", "memmap")
class MemmapStorage(NpyShards):
    """Images, labels and any other arrays in `.npy` files, mapped and never loaded.

    Each file is a field: ``images.npy`` is ``image``, uint8 [N, H, W, C]; ``labels.npy`` is
    ``label``, integers [N]; ``keys.npy`` holds the keys; other files name their fields. All have
    the same number of rows. Save a raw file as `.npy`:
    ``np.save("images.npy", np.memmap(FILE, "uint8", "r", shape=(N, 32, 32, 3)))``.

    Args:
        path: A folder of these files, or one file.
        classes: Class names by id; None: the lines of ``classes.txt``, or the numbers.
    """

    name = "memmap"
    endings = (".npy",)

    def named(self, name: str) -> tuple[ShardKey, str]:
        folder, base = os.path.split(name)
        return (folder, -1, ""), field_name(os.path.splitext(base)[0])


@register("storage", "pt_shards")
class PtShards(ArrayStorage):
    """Tensors in many `.pt` files, mapped; files that would run code are refused.

    A dict of tensors [N, ...] or lists of N values is a shard with a field for each. A tensor or a
    list is one field, named by the file, as for `npy_shards`. Values of a list are numbers, texts,
    or tensors of one shape. ``keys`` holds the keys; the default is row numbers.

    Args:
        path: A folder, a file, or a pattern.
        classes: Class names by id; None: the lines of ``classes.txt``, or the numbers.
    """

    name = "pt_shards"
    endings = (".pt", ".pth")

    def columns(self, path: str, root: str) -> Columns:
        saved = load_pt(path, root)
        if not isinstance(saved, Mapping):
            return {None: _column("it", saved)}
        return {str(name): _column(repr(name), value) for name, value in saved.items()}


def load_pt(path: str, root: str) -> Any:
    """Load a file of `torch.save` onto the CPU, with mapped tensors; never run its code.

    ValueError for a file that is damaged, of the format before torch 1.6, or would run code.
    """
    import torch

    file = RangeFile(path, root=root)
    size = retried(lambda: os.stat(path).st_size, path=path, root=root)
    try:
        for member in list_members(RangeStream(file, size)):
            if "/data/" not in member.name:  # the library verifies no member; tensors stay mapped
                read_member(file, member)
    except RecordError as error:
        raise ValueError(f"is damaged, or torch before 1.6 wrote it: {error}") from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # of many types, for damage and for refused content
        if isinstance(error, OSError) or is_trouble(error):
            raise
        said = " ".join(str(error).split()).partition(" This file can still be loaded")[0]
        raise ValueError(
            f"holds other things than tensors, or is damaged ({said[:200]}); save tensors, or "
            f"lists and dicts of them, with torch.save"
        ) from None


def _column(name: str, value: Any) -> Any:
    """Return a tensor as a read-only array over its memory, or the stacked values of a list."""
    import torch

    try:
        if isinstance(value, list):
            rows = [row.numpy() if isinstance(row, torch.Tensor) else row for row in value]
            array = np.array(rows)
        else:
            array = value.detach().numpy()
        is_changed = array.dtype.kind == "U" and array.tolist() != value
        if array.ndim and array.dtype.kind in "biufcU" and not is_changed:
            array.flags.writeable = False
            return array
    except (AttributeError, TypeError, ValueError, RuntimeError):  # another layout, type or shape
        pass
    kind = f"{value.dtype} tensor" if isinstance(value, torch.Tensor) else type(value).__name__
    raise ValueError(
        f"{name} is a {kind} that cannot become an array; expected a dense tensor [N, ...] of a "
        f"plain type, such as float32, or a list of N numbers, texts or tensors of one shape"
    )


class ShardWriter(Writer):
    """Writes a shard per part: fields of every record, and ``key`` with the keys."""

    part_bytes = 1 << 26
    texts = False
    cannot_hold = frozenset("files pixels shapes bytes values missing".split())

    def begin(self, folder: Path, plan: PackPlan) -> None:
        refuse_class_names(plan.class_names or ())
        if not plan.samples:
            raise ValueError("pack: none of the first records can be read; repair them")
        stacked(plan.samples, texts=self.texts)

    def write_part(
        self, folder: Path, plan: PackPlan, part: Part, records: Iterator[Record]
    ) -> tuple[str, ...]:
        found = list(records)
        if not found:
            return ()
        keys = plan.index.raw_keys(np.array([record.index for record in found], np.int64))
        if wrong := [key for key in keys if b"\0" in key]:
            raise ValueError(f"pack: the key {wrong[0]!r:.100} has a zero byte; pack it as lmdb")
        texts = [key.decode("utf-8", "surrogateescape") for key in keys]
        arrays = stacked([plan.samples[0], *found], texts=self.texts)  # of the sample's types
        rows = {name: array[1:] for name, array in arrays.items()}
        return tuple(self._save(folder, f"{part.number:05d}", {"key": np.array(texts), **rows}))

    @abstractmethod
    def _save(self, folder: Path, number: str, arrays: dict[str, Any]) -> list[str]:
        """Write a shard; return the names of its files."""

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        if plan.class_names is not None and any(s.labels is not None for s in summaries):
            write_lines(folder / CLASSES_NAME, plan.class_names)


@register("writer", "npy_shards")
class NpyShardsWriter(ShardWriter):
    """A folder of ``image_00000.npy``, ``label_00000.npy``, ..., which `numpy.load` opens."""

    def _save(self, folder: Path, number: str, arrays: dict[str, Any]) -> list[str]:
        for name, array in arrays.items():
            save_npy(folder / f"{name}_{number}.npy", [array])
        return [f"{name}_{number}.npy" for name in arrays]


@register("writer", "pt_shards")
class PtShardsWriter(ShardWriter):
    """A folder of ``00000.pt``, ..., each a dict of tensors, which `torch.load` opens."""

    def _save(self, folder: Path, number: str, arrays: dict[str, Any]) -> list[str]:
        import torch

        native = {n: a.astype(a.dtype.newbyteorder("=")) for n, a in arrays.items() if n != "key"}
        tensors = {name: torch.from_numpy(array) for name, array in native.items()}
        with writing(path := folder / f"{number}.pt"), open(path, "wb") as file:
            torch.save({"key": arrays["key"].tolist(), **tensors}, file)
        return [path.name]


@register("writer", "memmap")
class MemmapWriter(NpyShardsWriter):
    """A folder of arrays with a row for each record: images.npy, labels.npy and so on.

    All records have the same fields, each of one shape and type: images are decoded pixels of
    one size. ``classes.txt`` holds the class names, and ``keys.npy`` any keys other than row
    numbers.
    """

    version = 2

    def finish(self, folder: Path, plan: PackPlan, summaries: Sequence[PartSummary]) -> None:
        super().finish(folder, plan, summaries)
        shards: dict[str, list[Path]] = {}
        for name in (name for summary in summaries for name in summary.marks):
            if (folder / name).exists():
                shards.setdefault(name.rpartition("_")[0], []).append(folder / name)
        for field, paths in shards.items():
            rows = [map_npy(path) for path in paths]
            numbers = np.arange(sum(map(len, rows))).astype(str)
            if field != "key" or not np.array_equal(np.concatenate(rows), numbers):
                save_npy(folder / _FILES.get(field, f"{field}.npy"), rows)
            for path in paths:
                path.unlink()
