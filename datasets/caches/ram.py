"""Cache records in memory that the workers of a loader share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Literal

from penstock.core.processes import local_ranks
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages
from penstock.datasets.caches.limits import Size, available_bytes, parse_bytes
from penstock.datasets.caches.record_file import MARK_BYTES, RecordFile

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_MOST_SHARE = 0.9
_ELSEWHERE = (
    "the process that made this memory has ended, or runs on another machine or as another user; "
    "dataset/cache=ram and dataset=eager are for one machine, others keep records by "
    "dataset/cache=disk"
)


@register("cache", "ram")
def open_ram_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    max_bytes: Size | None = None,
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records in memory, one copy for all workers of a loader.

    Each rank on a machine has its own copy, which ends with the run.

    Args:
        storage: The storage to cache.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        max_bytes: Memory of a split in this process: 4GB, 500MB; null: 40 % of the memory that is
            available.
        what: ``encoded`` stores records as they are read, ``decoded`` the pixels of whole images,
            which take about five times the memory of JPEG files.

    Raises:
        ValueError: A value is invalid.
    """
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    store = MemoryStore(len(storage), memory_limit(max_bytes))
    return CachedStorage(storage, store, prepare=prepare)


def memory_limit(max_bytes: int | str | None = None, *, share: float = 0.4) -> int:
    """Return the limit in bytes, by default this rank's `share` of the available memory."""
    available = available_bytes() or 1 << 32
    if max_bytes is None:
        return int(share * available / local_ranks())
    return min(parse_bytes(max_bytes), int(_MOST_SHARE * available))


class MemoryStore(RecordFile):
    """Entries in a memfd, which ends with its last process; others reopen it by /proc."""

    where = "in memory"
    has_checksums = False

    def __init__(self, count: int, max_bytes: int) -> None:
        descriptor = os.memfd_create("penstock")
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
        super().__init__(path, secrets.token_bytes(MARK_BYTES), count=count, max_bytes=max_bytes)
        os.pwrite(descriptor, self._mark, self._start - MARK_BYTES)
        self._file = open(descriptor, "r+b", buffering=0)

    def open(self) -> IO[bytes]:
        assert self._file is not None
        return self._file

    @property
    def used_bytes(self) -> int:
        """Return the memory in use in bytes, table included."""
        return os.fstat(self.open().fileno()).st_size

    def _left_bytes(self, wanted_bytes: int) -> int:
        return self._max_bytes - self.used_bytes

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        try:
            self._file = open(self.path, "r+b", buffering=0)
        except OSError as error:
            raise RuntimeError(f"{self.path}: {error.strerror}: {_ELSEWHERE}") from error
        if not self._has_mark(self._file):
            raise RuntimeError(_ELSEWHERE)
