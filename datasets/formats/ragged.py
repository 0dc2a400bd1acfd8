"""Values of differing lengths in one array: all of them end to end, and where each begins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.shard_rows import ABSENT, DamagedShard

OFFSETS, SHAPES, CODES = "offsets", "shapes", "codes"
"""What the arrays beside the values are called: ``image.offsets``, ``image.shapes``, ..."""
KINDS = ("absent", "array", "bytes", "text", "json")
"""What a value is; the code of one is its place in this list."""


class Ragged:
    """Values of a field, by row.

    Args:
        values: All of them end to end, [total]; uint8 for anything but arrays.
        offsets: Where each begins and the last ends, integer [n + 1].
        shapes: The shape of each array, integer [n, axes], -1 for axes that it has not; None:
            all have one axis.
        codes: What each is, uint8 [n], of `KINDS`; None: `kind` says it of all.
        kind: ``array``; or ``bytes``, ``text`` (UTF-8) or ``json``.
    """

    def __init__(
        self,
        values: NDArray[Any],
        offsets: NDArray[Any],
        *,
        shapes: NDArray[Any] | None = None,
        codes: NDArray[Any] | None = None,
        kind: str = "array",
    ) -> None:
        count = len(offsets) - 1
        wrong = values.ndim != 1 or offsets.ndim != 1 or offsets.dtype.kind not in "iu"
        if shapes is not None:
            wrong |= shapes.ndim != 2 or len(shapes) != count or shapes.dtype.kind not in "iu"
        if codes is not None:
            wrong |= codes.shape != (count,) or codes.dtype != np.uint8
        if wrong or kind not in KINDS:
            raise DamagedShard(
                f"{kind} values {values.dtype} {list(values.shape)} with offsets {offsets.dtype} "
                f"{list(offsets.shape)} do not fit together"
            )
        self.values = values
        self.offsets = offsets
        self.shapes = shapes
        self.codes = codes
        self.code = KINDS.index(kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> Any:
        """One value; arrays are views. `ABSENT` where there is none.

        Raises:
            DamagedShard: Its place or its shape is none.
        """
        code = self.code if self.codes is None else int(self.codes[row])
        start, stop = int(self.offsets[row]), int(self.offsets[row + 1])
        if not 0 <= start <= stop <= len(self.values) or code >= len(KINDS):
            raise DamagedShard(f"row {row} lies outside the {len(self.values):,} values there are")
        kind, value = KINDS[code], self.values[start:stop]
        if kind == "absent":
            return ABSENT
        if kind == "array":
            return self._shaped(value, row)
        if kind == "bytes":
            return value.tobytes()
        try:
            text = value.tobytes().decode("utf-8", "surrogateescape")
            return text if kind == "text" else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedShard(f"row {row} is no {kind} ({error})") from error

    def _shaped(self, value: NDArray[Any], row: int) -> NDArray[Any]:
        if self.shapes is None:
            return value
        shape = [length for length in self.shapes[row].tolist() if length != -1]
        if min(shape, default=0) < 0 or math.prod(shape) != len(value):
            raise DamagedShard(f"row {row} has {len(value):,} numbers, which are no {shape}")
        return value.reshape(shape)


def join_parts(arrays: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Fields of arrays by name: those with offsets beside them are `Ragged`.

    Args:
        arrays: Arrays, or other columns, by name.
        kinds: What ragged fields hold, where their codes do not say it; arrays if not named.

    Raises:
        DamagedShard: The arrays of a field do not fit together.
    """
    fields: dict[str, Any] = {}
    for name, array in arrays.items():
        if "." in name:
            continue
        offsets = arrays.get(f"{name}.{OFFSETS}")
        if offsets is None:
            fields[name] = array
            continue
        shapes, codes = arrays.get(f"{name}.{SHAPES}"), arrays.get(f"{name}.{CODES}")
        kind = kinds.get(name, "array")
        fields[name] = Ragged(array, offsets, shapes=shapes, codes=codes, kind=kind)
    return fields


def check_part(name: str, names: Mapping[str, Any], where: str) -> bool:
    """Whether an array is part of a ragged field; ValueError if it is of none."""
    base, _, part = name.partition(".")
    wanted = base if part == OFFSETS else f"{base}.{OFFSETS}"
    if part and (part not in (OFFSETS, SHAPES, CODES) or wanted not in names):
        raise ValueError(f"{where}: {name!r} is no field, nor does it belong to one; rename it")
    return bool(part)
