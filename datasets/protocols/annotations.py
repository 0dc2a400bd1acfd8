"""What label files say of the records of a storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from datasets.protocols.storage import Storage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Int64Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsToLabel:
    """The records that annotations are asked for.

    Attributes:
        storage: Where they lie.
        keys: Their keys, [n].
        root: The folder, or file, of the whole data set.
        part: ``train`` or ``val`` where the data has parts, else an empty string.
        classes: Names of the classes by field, which the training part has settled.
    """

    storage: Storage
    keys: Sequence[str]
    root: str
    part: str
    classes: Mapping[str, tuple[str, ...]]


class Annotations(Protocol):
    """Where annotations lie: label files beside the data."""

    def of(self, records: RecordsToLabel) -> Sequence[RecordAnnotations]:
        """The annotations of a storage's records.

        Raises:
            ValueError: Label files are missing or are none (one line).
        """


class RecordAnnotations(Protocol):
    """What is known of every record of a storage beside what the storage holds."""

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the classes, by the field that holds their ids."""

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """Columns for the index, each [n]."""

    def fields(self, indices: Int64Array) -> Sequence[Mapping[str, Any] | str]:
        """More fields of the records at `indices`, int64 [n]; a line where a record is bad."""

    def fingerprint(self) -> str:
        """Hash of all that is annotated."""
