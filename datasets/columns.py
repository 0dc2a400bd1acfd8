"""Whole batches as columns, where no sample needs a look of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets.protocols import ColumnStorage
from datasets.sample import Record, TextColumn
from datasets.staged import rows_can_be_gathered

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets.protocols import Gather, Storage, Transform
    from datasets.stages import DecodeStage

_PIXELS = ("image", "mask")
_PLACES = {"boxes", "keypoints"}


class ColumnStage:
    """Takes records as columns that are what reading, decoding and transforming one by one gives.

    That is so where the storage gives columns, the transform says of itself that what it gives is
    ``unchanged``, and the decoder says so too or decodes ``columns``.

    Args:
        storage: Where the records lie.
        decode: The decoding, for its decoder and its renaming of fields.
        transform: The transform.
    """

    def __init__(self, storage: Storage, decode: DecodeStage, transform: Transform) -> None:
        self._storage: Any = storage
        self._decode = decode
        self._decoded: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
        if _unchanged(transform):
            self._decoded = _as_they_are if _unchanged(decode.decode) else _decoding(decode.decode)
        self._known: dict[str, str] | None = None

    def __call__(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        allocate: Callable[[int], Any] | None,
        gather: Gather | None = None,
    ) -> dict[str, Any] | None:
        """Columns of a batch; see `datasets.protocols.ColumnDataset`.

        `gather` gives those of images and masks, where this stage `gathers`.
        """
        names = self._names
        if not names:
            return None
        given: dict[str, Any] = {}
        if gather is not None:
            given["gather"] = {names[field]: gather for field in _PIXELS if field in names}
        taken = self._storage.take(indices, set(names.values()), allocate=allocate, **given)
        if taken is None:
            return None
        assert self._decoded is not None
        decoded = self._decoded({new: taken[name] for new, name in names.items()})
        if decoded is None:
            return None
        index = self._storage.index
        return {
            **{name: _listed(values) for name, values in decoded.items()},
            "index": indices,
            "key": getattr(index, "key_column", index.keys)(indices),
            "position": positions,
        }

    @property
    def possible(self) -> bool:
        """Whether batches can be made so at all."""
        return bool(self._names)

    @property
    def gathers(self) -> bool:
        """Whether images and masks are rows of arrays, unchanged, beside nothing that moves too."""
        names = self._names.keys()
        plain = self._decoded is _as_they_are and "image" in names and not _PLACES & names
        return plain and rows_can_be_gathered(self._storage)

    @property
    def _names(self) -> dict[str, str]:
        """Fields of the storage by the names that they get; empty where there are no columns."""
        if self._known is None:
            names = {} if self._decoded is None else self._renamed()
            # One that has to look first, or to prepare, does so here, before workers are started.
            nothing = np.zeros(0, np.int64)
            can = names and self._storage.take(nothing, set(names.values())) is not None
            self._known = names if can else {}
        return self._known

    def _renamed(self) -> dict[str, str]:
        if not isinstance(self._storage, ColumnStorage):
            return {}
        fields = {name: name for name in self._storage.fields}
        try:
            return self._decode.renamed(Record(0, "", fields))
        except ValueError:  # a record by itself says better what is wrong
            return {}


def _as_they_are(fields: dict[str, Any]) -> dict[str, Any]:
    return fields


def _decoding(decode: Any) -> Callable[[dict[str, Any]], dict[str, Any] | None] | None:
    """How a decoder decodes columns, if it can."""
    return getattr(decode, "columns", None)


def _listed(values: Any) -> Any:
    """Values as they are; with None for each that is missing, as records have them."""
    return values.tolist() if isinstance(values, np.ma.MaskedArray | TextColumn) else values


def _unchanged(part: Any) -> bool:
    return bool(getattr(part, "unchanged", False))
