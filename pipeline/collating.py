"""Functions shared by all collates: samples to columns, columns to arrays.

The loader makes tensors of the arrays, so that workers can do without torch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.contracts import Collate
from penstock.core.sample import Batch, Sample

MASK = "_mask"
LENGTHS = "_lengths"
_LARGEST = (1 << 63) - 1
_SEVERAL_OBJECTS = "crop each object to its own image, because keypoints describe one object"


class FieldCollate(Collate):
    """A collate that handles each field of arrays by itself.

    Attributes:
        needed: Fields that must be arrays.
    """

    needed: Collection[str] = ()

    def __call__(self, samples: list[Sample]) -> Batch:
        """Collate samples with the same fields; raise ValueError if shapes or fields differ.

        `collated` decides about arrays. Numbers become bool, int64 or float32 [B], and other values
        lists of B.
        """
        columns = to_columns(samples)
        keys = batch_keys(columns, len(samples))
        for field in self.needed:
            if not is_array(samples[0].get(field)):
                raise ValueError(
                    f"collate: no array {field!r}; fields: {', '.join(columns)}; set collate.field "
                    f"or collate.fields"
                )
        batch: Batch = {}
        for field, values in columns.items():
            if all(map(is_array, values)):
                batch |= self.collated(field, values, keys)
            else:
                batch[field] = from_values(field, values)
        return batch

    @abstractmethod
    def collated(self, field: str, values: list[Any], keys: list[str]) -> Batch:
        """Return the batch fields of one field, whose values are arrays."""


def to_columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Return a list of values per field; raise ValueError if a field is missing in some samples."""
    assert samples, "a batch has at least one sample"
    first = samples[0]
    for sample in samples:
        if sample.keys() != first.keys():
            field = min(map(str, sample.keys() ^ first.keys()))
            having, lacking = (sample, first) if field in sample else (first, sample)
            raise ValueError(
                f"collate: field {field!r} is in sample {having.get('key')!r} but not in "
                f"{lacking.get('key')!r}; drop it with dataset.keys={{{field.split('.')[0]}:null}} "
                f"or give it to every sample"
            )
    return {field: [sample[field] for sample in samples] for field in first}


def is_array(value: Any) -> bool:
    """Return whether a value is a numeric NumPy array or a torch tensor, of one axis or more."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biufc"
    if isinstance(value, (int, str)):
        return False
    return type(value).__module__.startswith("torch") and getattr(value, "ndim", 0) > 0


def to_array(value: Any) -> np.ndarray:
    """Return a value as an array in native byte order; a tensor shares its memory."""
    if not isinstance(value, np.ndarray):
        return value.detach().numpy()
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def from_values(field: str, values: list[Any]) -> NDArray[Any] | list[Any]:
    """Make an array [B] of bool, int64 or float32 from numbers; return other values unchanged.

    Arrays and tensors without axes count as numbers. Raise ValueError for too large integers.
    """
    types = set(map(type, values))
    if types == {str}:
        return values
    try:
        if types == {int}:  # most columns, without checks of each value
            return np.array(values, np.int64)
        plain = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
        if all(isinstance(value, (bool, np.bool_)) for value in plain):
            return np.array(plain, np.bool_)
        if all(isinstance(value, Integral) for value in plain):
            return np.array(plain, np.int64)
        if all(isinstance(value, Real) for value in plain):
            with np.errstate(over="ignore"):
                return np.array(plain, np.float64).astype(np.float32)
    except OverflowError:
        raise _too_large(field, max(values, key=abs)) from None
    return values


def _too_large(field: str, number: Any) -> ValueError:
    return ValueError(
        f"collate: {field!r} is {number!s:.60}, and the integers of torch end at {_LARGEST}; "
        f"drop it with dataset.keys={{{field.split('.')[0]}:null}}, or store it as text"
    )


def from_arrays(
    field: str,
    values: list[Any],
    keys: Sequence[str],
    *,
    remedy: str = "an augmentation step such as a resize, or use collate=pad or collate=list",
    allocate: Callable[[int], Any] | None = None,
) -> NDArray[Any]:
    """Stack arrays of one shape and type into one array [B, ...], each copied once.

    Args:
        field: Name of the field, for the message.
        values: Arrays or tensors.
        keys: Keys of the samples, for the message.
        remedy: How to make shapes equal, for the message.
        allocate: Returns writable memory of a size in bytes; None allocates it here.

    Raises:
        ValueError: Shapes or types differ.
    """
    arrays = [value if isinstance(value, np.ndarray) else to_array(value) for value in values]
    remedy = _SEVERAL_OBJECTS if field == "keypoints" else f"make them equal with {remedy}"
    refuse_unlike(f"collate: {field!r}", arrays, keys, remedy=remedy)
    stacked = empty((len(arrays), *arrays[0].shape), arrays[0].dtype, allocate=allocate)
    for row, array in zip(stacked, arrays, strict=True):
        row[...] = array
    return stacked


def refuse_unlike(
    field: str, arrays: Sequence[Any], keys: Sequence[str], *, free_axes: int = 0, remedy: str
) -> None:
    """Raise ValueError if arrays differ in type, or in axes after the first `free_axes`."""
    first = arrays[0]
    for array, key in zip(arrays, keys, strict=True):
        if array.ndim != first.ndim or array.shape[free_axes:] != first.shape[free_axes:]:
            raise ValueError(
                f"{field} is {list(first.shape)} in sample {keys[0]!r} and {list(array.shape)} in "
                f"{key!r}; {remedy}"
            )
        if array.dtype != first.dtype:
            raise ValueError(
                f"{field} is {first.dtype} in sample {keys[0]!r} and {array.dtype} in {key!r}; "
                f"let the storage or a transform give one type"
            )


def largest_arrays(columns: Mapping[str, list[Any]]) -> str | None:
    """Return the array field that takes the most memory, judged by its first value, or None."""
    sizes = {
        field: math.prod(values[0].shape) * values[0].itemsize
        for field, values in columns.items()
        if all(is_array(value) for value in values)
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def from_rows(images: list[Any], rows: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """Return `rows`, uint8 [B, H, W, C], if it has or can take the images of a batch.

    Images elsewhere are copied to their rows. Return None if an image differs in shape or type, the
    number of images differs, or an image is in the row of another.
    """
    if len(images) != len(rows):
        return None
    shape, row_bytes = rows.shape[1:], rows.strides[0]
    address = rows.__array_interface__["data"][0]
    elsewhere = []
    for row, image in enumerate(images):
        if not isinstance(image, np.ndarray) or image.shape != shape or image.dtype != np.uint8:
            return None
        if image.__array_interface__["data"][0] != address + row * row_bytes:
            if np.may_share_memory(image, rows):
                return None
            elsewhere.append(row)
        elif not image.flags.c_contiguous:
            return None
    for row in elsewhere:
        rows[row] = images[row]
    return rows


def from_column(field: str, values: np.ndarray) -> NDArray[Any] | list[Any]:
    """Convert a column to the array that its values would make one by one.

    Arrays [B, ...] keep their type and memory. Real numbers [B] are copied to bool, int64 or
    float32. Raise ValueError for a type that torch lacks, and for too large integers.
    """
    if values.ndim > 1:
        return values.astype(_native(values.dtype), copy=False)
    if values.dtype.kind not in "biuf":
        return values.tolist()
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(np.float32)
    if values.dtype.kind == "u" and values.max(initial=0) > _LARGEST:
        raise _too_large(field, values.max())
    return values.astype(np.bool_ if values.dtype.kind == "b" else np.int64)


def empty(
    shape: tuple[int, ...], dtype: np.dtype[Any], *, allocate: Callable[[int], Any] | None = None
) -> NDArray[Any]:
    """Return an uninitialised array, in memory of `allocate` if given.

    Raise ValueError for a type that torch lacks.
    """
    native, count = _native(dtype), math.prod(shape)
    if allocate is None or not count:
        return np.empty(shape, native)
    return np.frombuffer(allocate(count * native.itemsize), native, count).reshape(shape)


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in native byte order; raise ValueError for a dtype that torch lacks."""
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise ValueError(f"collate: torch lacks a type for {dtype} arrays")
    return dtype.newbyteorder("=")


def batch_keys(columns: dict[str, list[Any]], size: int) -> list[str]:
    """Return the samples' keys for messages, or their row numbers."""
    return columns.get("key") or [f"row {row}" for row in range(size)]


def padded(
    field: str,
    values: Sequence[Any],
    keys: Sequence[str],
    *,
    axes: int = 1,
    multiple_of: int = 1,
    fill: float,
    remedy: str,
) -> dict[str, NDArray[Any]]:
    """Pad arrays of one type along the first `axes` axes, to the longest or a multiple.

    Returns:
        ``field`` [B, length, ...], ``field_lengths`` int64 [B] (or [B, axes]), and ``field_mask``,
        bool, True for data.

    Raises:
        ValueError: Other axes or types differ.
    """
    arrays = [to_array(value) for value in values]
    remedy = f"only the first {axes} axes may differ, {remedy}"
    refuse_unlike(f"collate: {field!r}", arrays, keys, free_axes=axes, remedy=remedy)
    lengths = np.array([array.shape[:axes] for array in arrays], np.int64)
    sizes = (-(-lengths.max(0) // multiple_of) * multiple_of).tolist()
    filled = empty((len(arrays), *sizes, *arrays[0].shape[axes:]), arrays[0].dtype)
    filled.fill(fill)
    mask = np.zeros((len(arrays), *sizes), np.bool_)
    for row, marks, array in zip(filled, mask, arrays, strict=True):
        there = tuple(slice(length) for length in array.shape[:axes])
        row[there], marks[there] = array, True
    lengths = lengths[:, 0].copy() if axes == 1 else lengths
    return {field: filled, f"{field}{LENGTHS}": lengths, f"{field}{MASK}": mask}


def count_padding(batch: Batch) -> tuple[int, int]:
    """Count the elements of padded fields, in nested dicts too, without and with padding."""
    real = total = 0
    for name, value in batch.items():
        lengths = batch.get(f"{name.removesuffix(MASK)}{LENGTHS}")
        if isinstance(value, dict):
            inner_real, inner_total = count_padding(value)
            real, total = real + inner_real, total + inner_total
        elif name.endswith(MASK) and lengths is not None:
            real += int((lengths.prod(1) if lengths.ndim > 1 else lengths).sum())
            total += math.prod(value.shape)
    return real, total
