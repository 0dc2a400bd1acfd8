"""A storage whose images are encoded anew as tiled JPEG while they are read: what is packed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.protocols import Index, Storage
from datasets.sample import BadRecord, Record

Recode = Callable[[bytes], bytes]


class TiledStorage:
    """Wraps a storage; the ``image`` of every record is encoded anew.

    Args:
        storage: The records as they are.
        recode: An image file to another one; its ValueErrors make bad records.
    """

    def __init__(self, storage: Storage, recode: Recode) -> None:
        self._storage = storage
        self._recode = recode

    def __len__(self) -> int:
        return len(self._storage)

    def __str__(self) -> str:
        return str(self._storage)

    @property
    def index(self) -> Index:
        """The metadata of the records."""
        return self._storage.index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read and encode records, on all cores.

        Args:
            indices: int64 [n].

        Returns:
            The records in order.
        """
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self._tiled, self._storage.read(indices)))

    def fingerprint(self) -> str:
        """The wrapped storage's: which records these are."""
        return self._storage.fingerprint()

    def _tiled(self, record: Record | BadRecord) -> Record | BadRecord:
        if isinstance(record, BadRecord) or "image" not in record.fields:
            return record
        try:
            fields: dict[str, Any] = {
                **record.fields,
                "image": self._recode(bytes(record.fields["image"])),
            }
        except ValueError as error:
            return BadRecord(record.index, record.key, str(error))
        return replace(record, fields=fields)
