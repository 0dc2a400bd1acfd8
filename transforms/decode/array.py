"""Decode arrays of any type and shape, such as volumes, spectra and waveforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import view_npy
from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample


@register("decode", "array")
class ArrayDecoder(Decoder):
    """Decode fields to arrays of one type and order of axes.

    A field may be an array, a `.npy` file, or raw numbers with `stored` type and `shape`. The
    decoder never unpickles. Other fields pass unchanged; if all do, use ``decode=raw``. An array
    that keeps its type is not copied, so it may stay in a mapped file until the collate.

    Args:
        fields: The fields to decode.
        stored: Type of raw numbers, such as ``int16`` or ``>f4``.
        shape: Shape of raw numbers; -1 once, for an axis that follows from the length.
        axes: Order of the axes, as in ``transpose``, such as ``[2, 0, 1]``.
        dtype: Type of the result; None: as stored.
    """

    def __init__(
        self,
        *,
        fields: Sequence[str] = ("array",),
        stored: str | None = None,
        shape: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        self.fields = tuple(fields)
        self.stored = _type(stored, "stored")
        self.shape = None if shape is None else tuple(shape)
        self.axes = None if axes is None else tuple(axes)
        self.dtype = _type(dtype, "dtype")
        if (stored is None) != (shape is None):
            raise ValueError("decode/array: stored and shape belong together; got one of them")
        if self.shape is not None and (
            min(self.shape, default=0) < -1 or self.shape.count(-1) > 1 or 0 in self.shape
        ):
            raise ValueError(
                f"decode/array: shape {list(self.shape)}, expected lengths above 0 and -1 at most "
                f"once"
            )
        if self.axes is not None and sorted(self.axes) != list(range(len(self.axes))):
            raise ValueError(
                f"decode/array: axes {list(self.axes)}, expected each number from 0 on once, such "
                f"as [2,0,1]"
            )

    def __call__(self, record: Record) -> Sample:
        """Decode a record; raise `RecordError` if a field is missing or not such an array."""
        sample = {**record.fields, "index": record.index, "key": record.key}
        for field in self.fields:
            if field not in record.fields:
                names = ", ".join(record.fields) or "none"
                raise RecordError(
                    f"no field {field!r} to decode, fields: {names}; set dataset.decode.fields, "
                    f"or rename one with dataset.keys"
                )
            sample[field] = self._decoded(record.fields[field], field)
        return sample

    def _decoded(self, value: Any, field: str) -> NDArray[Any]:
        array = value if isinstance(value, np.ndarray) else self._array(value, field)
        if array.dtype.kind not in "biufc":
            raise RecordError(f"{field!r} holds {array.dtype}, expected numbers")
        if self.axes is not None:
            if array.ndim != len(self.axes):
                raise RecordError(
                    f"{field!r} is {list(array.shape)}, expected {len(self.axes)} axes as "
                    f"dataset.decode.axes has"
                )
            array = array.transpose(self.axes)
        if self.dtype is not None and array.dtype != self.dtype:
            if array.dtype.kind == "c" and self.dtype.kind != "c":
                raise RecordError(f"{field!r} is {array.dtype}, which {self.dtype} cannot hold")
            array = array.astype(self.dtype)
        return array

    def _array(self, value: Any, field: str) -> NDArray[Any]:
        if isinstance(value, bytes | bytearray | memoryview):
            if self.stored is None or self.shape is None:
                try:
                    return view_npy(bytes(value))
                except ValueError as error:
                    raise RecordError(
                        f"{field!r} {error}; for plain numbers set dataset.decode.stored and shape"
                    ) from None
            return self._plain(value, self.stored, self.shape, field)
        array = np.asarray(value) if isinstance(value, bool | int | float | list) else None
        if array is None or array.dtype.kind not in "biuf":
            raise RecordError(f"{field!r} is a {type(value).__name__}, expected an array or bytes")
        return array

    def _plain(
        self, value: Any, stored: np.dtype[Any], shape: tuple[int, ...], field: str
    ) -> NDArray[Any]:
        size, fixed = memoryview(value).nbytes, stored.itemsize * abs(math.prod(shape))
        if size % fixed or (-1 not in shape and size != fixed):
            raise RecordError(
                f"{field!r} has {size:,} bytes, expected {fixed:,}"
                f"{' or a multiple' if -1 in shape else ''} for {stored} {list(shape)}; set "
                f"dataset.decode.stored and shape"
            )
        return np.frombuffer(value, stored).reshape(shape)


def _type(name: str | None, argument: str) -> np.dtype[Any] | None:
    if name is None:
        return None
    try:
        kind = np.dtype(name)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "biufc":
        raise ValueError(
            f"decode/array: {argument} {name!r}, expected a type of numbers, such as float32, "
            f"int16 or '>u2'"
        )
    return kind
