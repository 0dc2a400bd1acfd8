"""Where records lie: an index, a storage, and one of equal records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from datasets.sample import BadRecord, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]

Gather = Callable[
    ["NDArray[Any]", "NDArray[np.int64]", "Callable[[int], Any] | None"], "NDArray[Any]"
]
"""Gives the rows, int64 [n], of an array as an array of n rows, in memory of the third if any."""


@runtime_checkable
class Index(Protocol):
    """Metadata of every record, known without reading the records; memory-mapped."""

    def __len__(self) -> int: ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns beside the key: ``label``, ``size_bytes``, ``height``, ..."""

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label, or None where there are no labels."""

    def column(self, name: str) -> NDArray[Any]:
        """One column as an array [len(self)]; KeyError names the columns there are."""

    def keys(self, indices: Int64Array) -> list[str]:
        """Keys of the given indices, int64 [n]."""

    def fingerprint(self) -> str:
        """Hash of keys, sizes and labels; not of paths or times."""


@runtime_checkable
class Storage(Protocol):
    """Where records lie."""

    def __len__(self) -> int: ...

    @property
    def index(self) -> Index:
        """The metadata of this storage."""

    def read(self, indices: Int64Array) -> list[Record | BadRecord]:
        """Read the records at `indices`, int64 [n], in that order.

        One bad record never spoils the others. Passing trouble is retried, then raised.
        """

    def fingerprint(self) -> str:
        """Hash of the data's identity: equal for a copy of the data at another place."""


@runtime_checkable
class MappedStorage(Storage, Protocol):
    """A storage of which some records are views of what is mapped, and take no memory."""

    def held_bytes(self, indices: Int64Array) -> NDArray[Any] | None:
        """Memory that each of the records at `indices`, int64 [n], takes when it has been read.

        Integers [n]; None where it is not known.
        """


@runtime_checkable
class ColumnStorage(Storage, Protocol):
    """A storage whose records all have the same fields, each with values of one shape and type."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record, in their order."""

    def take(
        self,
        indices: Int64Array,
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, Any] | None:
        """The given fields of the records at `indices`, int64 [n], as new arrays [n, ...].

        None where one of the records is bad: ``read`` says which, and why. None too, also where
        `indices` are none, if these fields have no columns.
        Row i holds what ``read`` gives for ``indices[i]``; numbers are bool, integers or floats,
        in a masked array where some are None. Texts are a `datasets.sample.TextColumn`.
        `allocate` gives writable memory of so many bytes, for the largest of the arrays.
        """


class GatheringStorage(ColumnStorage, Protocol):
    """A storage whose fields lie in arrays as a whole, so that others can gather their rows."""

    gathers: bool
    """True."""

    def take(
        self,
        indices: Int64Array,
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
        gather: Mapping[str, Gather] | None = None,
    ) -> dict[str, Any] | None:
        """As `ColumnStorage`; a field that `gather` names is what that gives of its array."""
