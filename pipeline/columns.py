"""Samples to columns, and a column of equal values to a tensor: what all collates share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.sample import Sample

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


def to_columns(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """One list of values per field.

    Args:
        samples: At least one sample.

    Raises:
        ValueError: A field is there in some samples only.
    """
    assert samples, "a batch has at least one sample"
    fields = samples[0].keys()
    for sample in samples:
        if sample.keys() != fields:
            key = sorted(sample.keys() ^ fields)[0]
            having, lacking = (sample, samples[0]) if key in sample else (samples[0], sample)
            raise ValueError(
                f"collate: field {key!r} is in sample {having.get('key')!r} but not in "
                f"{lacking.get('key')!r}; drop it with dataset.keys={{{key}: null}} or give it "
                f"to every sample"
            )
    return {field: [sample[field] for sample in samples] for field in fields}


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array of numbers or a torch tensor, of one axis or more."""
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biufc"
    if isinstance(value, (int, str)):
        return False
    return type(value).__module__.startswith("torch") and getattr(value, "ndim", 0) > 0


def to_array(value: Any) -> np.ndarray:
    """An array of the value in the machine's byte order; a tensor's memory is shared."""
    if not isinstance(value, np.ndarray):
        return value.detach().numpy()
    return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))


def from_numbers(values: list[Any]) -> torch.Tensor | None:
    """A tensor [B] of a column of numbers, or None where it is something else.

    Returns:
        bool, int64 or float32; arrays and tensors without axes count as numbers.
    """
    import torch

    types = set(map(type, values))
    if types == {int}:  # the usual column, without a look at each value
        return torch.tensor(values, dtype=torch.int64)
    if types == {str}:
        return None
    plain = [value.item() if getattr(value, "ndim", None) == 0 else value for value in values]
    if all(isinstance(value, (bool, np.bool_)) for value in plain):
        return torch.tensor(plain, dtype=torch.bool)
    if all(isinstance(value, Integral) for value in plain):
        return torch.tensor(plain, dtype=torch.int64)
    if all(isinstance(value, Real) for value in plain):
        return torch.tensor(plain, dtype=torch.float32)
    return None


def from_arrays(
    field: str,
    values: list[Any],
    keys: Sequence[str],
    *,
    allocate: Callable[[int], Any] | None = None,
) -> torch.Tensor:
    """Arrays of one shape and type in one tensor [B, ...], each copied once.

    Args:
        field: The field's name, for the message.
        values: Arrays or tensors.
        keys: Keys of the samples, for the message.
        allocate: Gives writable memory of so many bytes for the tensor; None: its own.

    Raises:
        ValueError: Shapes or types differ.
    """
    import torch

    arrays = [value if isinstance(value, np.ndarray) else to_array(value) for value in values]
    first = arrays[0]
    for array, key in zip(arrays, keys, strict=True):
        if array.shape != first.shape:
            raise ValueError(
                f"collate: {field!r} is {list(first.shape)} in sample {keys[0]!r} and "
                f"{list(array.shape)} in {key!r}; make them equal with an augmentation step "
                f"such as a resize, or use collate=pad or collate=list"
            )
        if array.dtype != first.dtype:
            raise ValueError(
                f"collate: {field!r} is {first.dtype} in sample {keys[0]!r} and {array.dtype} "
                f"in {key!r}; let the storage or a transform give one type"
            )
    stacked = empty((len(arrays), *first.shape), first.dtype, allocate=allocate)
    rows = stacked.numpy()
    for row, array in zip(rows, arrays, strict=True):
        row[...] = array
    assert isinstance(stacked, torch.Tensor)
    return stacked


def largest_arrays(columns: Mapping[str, list[Any]]) -> str | None:
    """The field whose values are arrays and take the most memory, by its first; None: no field."""
    sizes = {
        field: math.prod(values[0].shape) * values[0].itemsize
        for field, values in columns.items()
        if all(is_array(value) for value in values)
    }
    return max(sizes, key=sizes.__getitem__, default=None)


def from_rows(images: list[Any], rows: NDArray[np.uint8]) -> torch.Tensor | None:
    """The memory that the images of a batch were written to, as a tensor.

    Args:
        images: The images. Those that are not in their row are copied there.
        rows: uint8 [B, H, W, C].

    Returns:
        uint8 [B, H, W, C], in the memory of `rows`; None where that cannot be: an image is of
        another shape or type, there are fewer images than rows, or one lies in another's row.
    """
    import torch

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
    return torch.from_numpy(rows)


def from_column(values: np.ndarray) -> torch.Tensor:
    """A column as the tensor that its values would make one by one.

    Args:
        values: Arrays [B, ...], whose memory the tensor takes over; or numbers [B], which are
            copied.

    Returns:
        Arrays in their own type, numbers as bool, int64 or float32.

    Raises:
        ValueError: torch has no such type.
    """
    import torch

    if values.ndim > 1:
        native = values.astype(values.dtype.newbyteorder("="), copy=False)
        try:
            return torch.from_numpy(native)
        except TypeError:
            raise ValueError(_no_type(values.dtype)) from None
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return torch.from_numpy(values.astype(np.float32))
    return torch.from_numpy(values.astype(np.bool_ if values.dtype.kind == "b" else np.int64))


def empty(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    allocate: Callable[[int], Any] | None = None,
) -> torch.Tensor:
    """An uninitialised tensor of a NumPy type; `allocate` gives its memory, if it needs any.

    Raises:
        ValueError: torch has no such type.
    """
    import torch

    native, count = dtype.newbyteorder("="), math.prod(shape)
    try:
        if allocate is None or not count:
            return torch.from_numpy(np.empty(shape, native))
        torch.from_numpy(np.empty(0, native))  # before memory is asked for
        memory = np.frombuffer(allocate(count * native.itemsize), native, count)
        return torch.from_numpy(memory.reshape(shape))
    except TypeError:
        raise ValueError(_no_type(dtype)) from None


def _no_type(dtype: np.dtype[Any]) -> str:
    return f"collate: torch has no type for {dtype} arrays"


def batch_keys(columns: dict[str, list[Any]], size: int) -> list[str]:
    """What to call the samples in a message: their keys, or their rows where they have none."""
    return columns.get("key") or [f"row {row}" for row in range(size)]
