"""Whole batches as columns, where no sample needs a look of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from datasets.protocols import ColumnStorage
from datasets.sample import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from datasets.protocols import Storage, Transform
    from datasets.stages import DecodeStage


class ColumnStage:
    """Takes records as columns that are what reading, decoding and transforming one by one gives.

    That is so where the storage gives columns and both decoder and transform say of themselves
    that what they give is ``unchanged``.

    Args:
        storage: Where the records lie.
        decode: The decoding, for its decoder and its renaming of fields.
        transform: The transform.
    """

    def __init__(self, storage: Storage, decode: DecodeStage, transform: Transform) -> None:
        self._storage: Any = storage
        self._decode = decode
        self._unchanged = _unchanged(decode.decode) and _unchanged(transform)
        self._known: dict[str, str] | None = None

    def __call__(
        self,
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        allocate: Callable[[int], Any] | None,
    ) -> dict[str, Any] | None:
        """Columns of a batch; see `datasets.protocols.ColumnDataset`."""
        names = self._names
        if not names:
            return None
        taken = self._storage.take(indices, set(names.values()), allocate=allocate)
        if taken is None:
            return None
        return {
            **{new: taken[name] for new, name in names.items()},
            "index": indices,
            "key": self._storage.index.keys(indices),
            "position": positions,
        }

    @property
    def possible(self) -> bool:
        """Whether batches can be made so at all."""
        return bool(self._names)

    @property
    def _names(self) -> dict[str, str]:
        """Fields of the storage by the names that they get; empty where there are no columns."""
        if self._known is None:
            self._known = self._renamed() if self._unchanged else {}
        return self._known

    def _renamed(self) -> dict[str, str]:
        if not isinstance(self._storage, ColumnStorage):
            return {}
        fields = {name: name for name in self._storage.fields}
        try:
            return self._decode.renamed(Record(0, "", fields))
        except ValueError:  # a record by itself says better what is wrong
            return {}


def _unchanged(part: Any) -> bool:
    return bool(getattr(part, "unchanged", False))
