"""Decode arrays of any type and shape, such as volumes, spectra and waveforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.core.arrays import view_npy
from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample

_NUMBERS = "biufc"
_Type = Literal[
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


@register("decode", "array")
@dataclass(kw_only=True, eq=False)
class ArrayDecoder(Decoder):
    """Decode fields to arrays of one type and order of axes.

    A field may be an array, numbers in lists, or a `.npy` file, which is never unpickled. Other
    fields pass unchanged; if all do, use ``decode=raw``. An array that keeps its type is not
    copied, so it may stay in a mapped file until the collate.

    Args:
        fields: The fields to decode.
        axes: Order of the axes, as in ``transpose``, such as ``[2, 0, 1]``.
        dtype: Type of the result; None: as stored.
    """

    fields: Sequence[str] = ("array",)
    axes: Sequence[int] | None = None
    dtype: _Type | None = None

    def __post_init__(self) -> None:
        if self.axes is not None and sorted(self.axes) != list(range(len(self.axes))):
            raise ValueError(
                f"decode/array: axes {list(self.axes)}, expected an order of all, such as [2,0,1]"
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
            try:
                sample[field] = self._decoded(record.fields[field])
            except ValueError as error:
                raise RecordError(f"{field!r} {error}") from None
        return sample

    def _decoded(self, value: Any) -> NDArray[Any]:
        is_file = isinstance(value, bytes | bytearray | memoryview)
        array = view_npy(bytes(value)) if is_file else np.asanyarray(value)
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(f"is a {type(value).__name__} of {array.dtype}, expected numbers")
        if self.axes is not None:
            if array.ndim != len(self.axes):
                raise ValueError(
                    f"is {list(array.shape)}, expected {len(self.axes)} axes as dataset.decode.axes"
                )
            array = array.transpose(self.axes)
        if self.dtype is not None and array.dtype != self.dtype:
            if array.dtype.kind == "c" and not self.dtype.startswith("complex"):
                raise ValueError(f"is {array.dtype}, which {self.dtype} cannot hold")
            if array.size and np.dtype(self.dtype).kind in "iu":
                limits = np.iinfo(self.dtype)
                if not (limits.min <= array.min() and array.max() <= limits.max):  # or NaN
                    raise ValueError(f"has numbers that {self.dtype} cannot hold")
            array = array.astype(self.dtype)
        return array
