"""Cache records on a disk of this machine, in a file for each data set.

The only memory is the system's page cache. To read and check a record of 110 kB there takes some
75 us, against 20 us from a cache in memory, and over 1,000 us to decode it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from penstock.core.files import is_at, machine_folder
from penstock.core.record_codec import Buffer, Entry
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, Store, WholeImages
from penstock.datasets.caches.limits import parse_bytes

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_log = logging.getLogger(__name__)

_FORMAT = 3
_LEAST_BYTES = 1_000_000
_ENDING = ".records"
_MARK = b"penstock records"
_PLACE = struct.Struct("<Q")
_HEAD = struct.Struct("<QQ")  # size, checksum
_FAR = 1 << 62
_MOST_BYTES = 1 << 30
_MOST_PARTS = 1000  # of one write call
_LEAST_FREE = 0.1  # of the disk
_USE_S = 60.0
_UNUSED_S = 600.0
"""A cache in use is touched every `_USE_S`; one that is untouched for longer may be removed."""


@register("cache", "disk")
def open_disk_cache(
    storage: Storage,
    *,
    decode: Decoder | None = None,
    keys: Mapping[str, str | None] | None = None,
    path: str | None = None,
    max_bytes: int | str = "50GB",
    what: Literal["encoded", "decoded"] = "encoded",
) -> Storage:
    """Records on a local disk, with checksums, for data that is slow to read.

    Later and concurrent runs share the cache of a data set. The data's fingerprint, name, path and
    file times in the index name its file. A file overwritten in place with equal size and times
    goes unnoticed: empty the folder then.

    In a full folder, caches that no run has used for ten minutes are removed, the oldest
    first. Writing stops when less than a tenth of the disk is free. If the user's cache folder is
    not writable or the disk is full, the cache is off, with a warning.

    Args:
        storage: The storage to cache.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        path: A folder; null: ``records`` in the user's cache folder.
        max_bytes: Bytes of all caches in the folder: 50GB, 500MB.
        what: ``encoded`` stores records as they are read, ``decoded`` the pixels of whole images.

    Raises:
        ValueError: A value is invalid, or the given folder is unusable.
    """
    if what not in ("encoded", "decoded"):
        raise ValueError(f"dataset.cache.what: {what!r} given, expected encoded or decoded")
    prepare = WholeImages(decode, keys) if what == "decoded" else None
    size_bytes = parse_bytes(max_bytes)
    if size_bytes < _LEAST_BYTES:
        raise ValueError(
            f"dataset.cache.max_bytes: {max_bytes!r} given, but a cache on disk takes "
            f"{_LEAST_BYTES:,} bytes at least; allow more"
        )
    try:
        folder = machine_folder("records") if path is None else Path(path).expanduser().absolute()
    except (OSError, ValueError) as error:
        return _uncached(storage, error)
    store = DiskStore(
        folder, name=_name(storage, prepare), count=len(storage), max_bytes=size_bytes
    )
    try:
        store.open()
    except OSError as error:
        if path is None or error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _uncached(storage, error)
        raise ValueError(
            f"dataset.cache.path: {path} cannot be written ({error.strerror}); give another folder"
        ) from error
    return CachedStorage(storage, store, prepare=prepare)


def _uncached(storage: Storage, error: Exception) -> Storage:
    _log.warning("dataset/cache=disk is off: its folder cannot be written (%s)", error)
    return storage


def _name(storage: Storage, prepare: WholeImages | None) -> str:
    """Hash everything that the content depends on."""
    recipe = [
        _FORMAT,
        storage.fingerprint(),
        str(storage),
        len(storage),
        storage.state(),
        prepare.recipe if prepare is not None else None,
    ]
    text = json.dumps(recipe, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class DiskStore(Store):
    """Entries of a data set in a file that processes share: a table of places, then the entries.

    A writer appends an entry and then writes its place, eight bytes by record number. So no process
    waits for a lock, readers see a whole entry or none, and a killed process leaves a hole. The
    checksum of an entry covers its record's number and size too. Nothing is evicted: see
    `datasets.caches.ram.KeepStore`.

    Args:
        folder: The folder; created if missing.
        max_bytes: Bytes of all caches in the folder.

    Raises:
        ValueError: The table alone exceeds the limit.
    """

    def __init__(self, folder: Path, *, name: str, count: int, max_bytes: int) -> None:
        self.path = folder / f"{name}{_ENDING}"
        self._count = count
        self._max_bytes = max_bytes
        self._start = _PLACE.size * count + len(_MARK)
        if self._start > max_bytes:
            raise ValueError(
                f"dataset.cache.max_bytes: {max_bytes:,} bytes, but the table of {count:,} records "
                f"takes {self._start:,} of them; allow more"
            )
        self.room_bytes = max_bytes - self._start
        self._file: IO[bytes] | None = None
        self._used_s = 0.0

    def close(self) -> None:
        """Close the file; the next use reopens it."""
        self._file = None

    def get_all(self, indices: Sequence[int]) -> list[bytes | None]:
        """Return the entries of records; None for missing entries."""
        try:
            file = self.open()
            return [self._read(file.fileno(), index) for index in indices]
        except OSError as error:
            self._admit_no_more(error.strerror)
            return [None] * len(indices)

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Store entries while the folder's limit and the disk allow it."""
        try:
            if self._has_room(sum(_HEAD.size + entry.size_bytes for _, entry in entries)):
                self._append(entries)
        except OSError as error:
            self._admit_no_more(error.strerror)

    def _read(self, descriptor: int, index: int) -> bytes | None:
        place = os.pread(descriptor, _PLACE.size, _PLACE.size * index)
        if len(place) < _PLACE.size or not (at := _PLACE.unpack(place)[0]):
            return None
        head = os.pread(descriptor, _HEAD.size, at) if at < _FAR else b""
        if len(head) == _HEAD.size:
            size_bytes, checksum = _HEAD.unpack(head)
            if size_bytes <= os.fstat(descriptor).st_size - at - _HEAD.size:
                payload = os.pread(descriptor, size_bytes, at + _HEAD.size)
                if _checksum(index, size_bytes, [payload]) == checksum:
                    return payload
        os.pwrite(descriptor, bytes(_PLACE.size), _PLACE.size * index)
        self._count_damage(f"a damaged entry (record {index}) was dropped")
        return None

    def _append(self, entries: Sequence[tuple[int, Entry]]) -> None:
        file = self.open()
        if not is_at(self.path, file.fileno()):  # another process has removed it
            self.close()
            file = self.open()
        # A separate descriptor, whose position is the end of our last write.
        end = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            for index, entry in dict(entries).items():
                place = os.pread(file.fileno(), _PLACE.size, _PLACE.size * index)
                if any(place) or entry.size_bytes > _MOST_BYTES:
                    continue  # another process stored it, or it is too large for one call
                parts = entry.parts if len(entry.parts) < _MOST_PARTS else [b"".join(entry.parts)]
                size_bytes = entry.size_bytes
                head = _HEAD.pack(size_bytes, _checksum(index, size_bytes, parts))
                written = os.writev(end, [head, *parts])
                if written == _HEAD.size + size_bytes:  # else the disk is full: the next one raises
                    at = os.lseek(end, 0, os.SEEK_CUR) - written
                    os.pwrite(file.fileno(), _PLACE.pack(at), _PLACE.size * index)
        finally:
            os.close(end)

    def open(self) -> IO[bytes]:
        """Open the file, created if missing, and mark it as used.

        Raises:
            OSError: The folder is unusable.
        """
        while (file := self._file) is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            file = open(descriptor, "r+b", buffering=0)
            at = self._start - len(_MARK)
            if os.fstat(descriptor).st_size < self._start:
                os.pwrite(descriptor, _MARK, at)  # every process writes the same bytes
            elif os.pread(descriptor, len(_MARK), at) != _MARK:
                self._count_damage(f"{self.path.name} is damaged and deleted")
                self.path.unlink(missing_ok=True)
                continue
            self._file, self._used_s = file, 0.0
        if time.monotonic() - self._used_s > _USE_S or not self._used_s:
            self._used_s = time.monotonic()
            with contextlib.suppress(OSError):  # another user's file
                os.utime(file.fileno())
        return file

    def _admit_no_more(self, why: str | None) -> None:
        if self.wants_more:
            self.wants_more = False
            _log.warning(
                "cache %s: nothing more is admitted (%s); its records are still used",
                self.path.parent, why,
            )  # fmt: skip

    def _count_damage(self, what: str) -> None:
        self.damaged += 1
        if self.damaged == 1:
            _log.warning(
                "cache %s: %s and is read from the data; further damage is only counted",
                self.path.parent, what,
            )  # fmt: skip

    def _has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` may be written; remove unused caches if necessary."""
        while True:
            files = [*self.path.parent.glob(f"*{_ENDING}")]
            total = max(sum(map(_size, files)), self._start)
            disk = shutil.disk_usage(self.path.parent)
            fits = total + size_bytes <= self._max_bytes
            if fits and disk.free - size_bytes >= _LEAST_FREE * disk.total:
                return True
            unused = {_used_at(path): path for path in files if path != self.path}
            if not unused or min(unused) > time.time() - _UNUSED_S:
                break
            unused[min(unused)].unlink(missing_ok=True)
        if fits:
            self._admit_no_more(f"less than {_LEAST_FREE:.0%} of the disk is free")
        self.wants_more = False
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.path.parent, self.path.stem, self._count, self._max_bytes)


def _reopened(folder: Path, name: str, count: int, max_bytes: int) -> DiskStore:
    return DiskStore(folder, name=name, count=count, max_bytes=max_bytes)


def _checksum(index: int, size_bytes: int, parts: Sequence[Buffer]) -> int:
    checksum = zlib.crc32(_HEAD.pack(index, size_bytes))  # so that zeros never match
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _used_at(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0
