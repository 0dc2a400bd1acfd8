"""Cache records on a disk of this machine, in a file for each split."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from penstock.core.files import is_at, machine_folder
from penstock.core.machine_cache import signature_of
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages
from penstock.datasets.caches.limits import Size, parse_bytes
from penstock.datasets.caches.record_file import RecordFile

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_log = logging.getLogger(__name__)

_FORMAT = 5
_MARK = b"penstock records"
_LEAST_FREE = 0.1  # of the disk


@register("cache", "disk")
def open_disk_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    path: str | None = None,
    max_bytes: Size = "50GB",
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records on a local disk, with checksums, for data that is slow to read.

    Later and concurrent runs share the cache of a data set. A changed file of the data begins a
    new one. Changed rows of a database server, and files that change with equal size and times, go
    unnoticed: empty the folder then.

    Writing stops when less than a tenth of the disk is free. If the folder is not writable, the
    cache is off, with a warning.

    Args:
        storage: The storage to cache.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        path: A folder; null: the user's cache folder, which keeps unused files for a month.
        max_bytes: Disk space of a split: 50GB, 500MB.
        what: ``encoded`` stores records as they are read, ``decoded`` the pixels of whole images.

    Raises:
        ValueError: A value is invalid.
    """
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    content = [storage.fingerprint(), str(storage), len(storage), storage.state()]
    sign = signature_of(format=_FORMAT, content=content, prepared=prepare and prepare.recipe)
    size_bytes = parse_bytes(max_bytes)
    try:
        folder = machine_folder("computed") if path is None else Path(path).expanduser().absolute()
        store = DiskStore(folder / f"rows-{sign}.records", count=len(storage), max_bytes=size_bytes)
        store.open()
    except OSError as error:
        _log.warning("dataset/cache=disk is off: its folder cannot be written (%s)", error)
        return storage
    if content[-1] is None:
        _log.info("dataset/cache=disk: if values in %s change, empty %s", storage, folder)
    return CachedStorage(storage, store, prepare=prepare)


class DiskStore(RecordFile):
    """Entries of a data set in a file, with checksums."""

    def __init__(self, path: Path, *, count: int, max_bytes: int) -> None:
        super().__init__(str(path), _MARK, count=count, max_bytes=max_bytes)
        self.folder, self.where = path.parent, str(path.parent)

    def open(self) -> IO[bytes]:
        """Open the file, created if missing, and mark it as used."""
        if self._file is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            file = open(descriptor, "r+b", buffering=0)
            if not self._has_mark(file):  # new, or damaged
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, _MARK, self._start - len(_MARK))
            with contextlib.suppress(OSError):  # another user's file
                os.utime(descriptor)
            self._file = file
        return self._file

    def _left_bytes(self, wanted_bytes: int) -> int:
        if not is_at(self.path, self.open().fileno()):  # removed by another process
            self.close()
            self.open()
        disk = shutil.disk_usage(self.folder)
        allowed = self._max_bytes - os.path.getsize(self.path)
        free = int(disk.free - _LEAST_FREE * disk.total)
        if free < min(wanted_bytes, allowed):
            self.admit_no_more(f"less than {_LEAST_FREE:.0%} of the disk is free")
        return min(allowed, free)
