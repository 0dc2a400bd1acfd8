"""Records kept on a disk of this machine, from run to run, in a file for each data set.

No memory stands before it: the system keeps what was read last. Of a record of 110 kB that it has,
reading and its checksum take some 75 us, a cache in memory 20, and decoding it over 1,000.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from penstock.core.contracts import StorageCapabilities, capabilities_of
from penstock.core.files import is_at, machine_folder
from penstock.core.record_codec import Buffer, Entry
from penstock.core.registry import register
from penstock.datasets.caches.cached_storage import CachedStorage, WholeImages
from penstock.datasets.caches.limits import parse_bytes
from penstock.datasets.records.index import Index
from penstock.datasets.records.indexed_storage import IndexedStorage

if TYPE_CHECKING:
    from penstock.core.contracts import Decoder, Storage

_log = logging.getLogger(__name__)

_FORMAT = 3
_LEAST_BYTES = 1_000_000
_ENDING, _LOCK_ENDING = ".records", ".records.lock"
_MARK = b"penstock records"
_PLACE = struct.Struct("<Q")
_HEAD = struct.Struct("<QQ")  # size, checksum
_FAR = 1 << 62
_MOST_BYTES = 1 << 30
_MOST_PARTS = 1000  # which a system writes at once


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

    The cache of a data set is used again by later runs, and by others at the same time. A data
    set is known by its fingerprint, its name and path, and what its index notes of its files'
    times; files that were overwritten in place by others of the same size and name are not
    noticed: empty the folder then. Once the folder is full, caches of other data that no run
    uses are deleted, those first that were used longest ago.

    Args:
        storage: What is read.
        decode: The data set's decoder.
        keys: The data set's renaming of fields.
        path: A folder; null: ``records`` in the user's cache folder.
        max_bytes: Of all caches in the folder together: 50GB, 500MB.
        what: ``encoded`` keeps records as they are read, ``decoded`` the pixels of whole images.

    Raises:
        ValueError: A value is wrong, or the folder cannot be used.
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
    folder = Path(path).expanduser().absolute() if path is not None else machine_folder("records")
    store = DiskStore(
        folder, name=_name(storage, prepare), count=len(storage), max_bytes=size_bytes
    )
    return CachedStorage(storage, store, prepare=prepare)


def _name(storage: Storage, prepare: WholeImages | None) -> str:
    """A hash of everything that the content depends on."""
    recipe = [
        _FORMAT,
        storage.fingerprint(),
        str(storage),
        len(storage),
        _notes(storage),
        prepare.recipe if prepare is not None else None,
    ]
    text = json.dumps(recipe, sort_keys=True, default=os.fspath)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _notes(storage: Storage | None) -> list[Any]:
    """Collect what a storage and what it wraps note: times of files, and where images lie."""
    notes: list[Any] = []
    while storage is not None:
        notes.append(storage.index.metadata if isinstance(storage.index, Index) else None)
        notes.append(storage.image_place() if isinstance(storage, IndexedStorage) else None)
        storage = capabilities_of(storage, StorageCapabilities).wraps
    return notes


class DiskStore:
    """Entries of a data set in a file, for several processes: a table of places, and the entries.

    An entry is appended, which the system does for one writer at a time, and then its place, eight
    bytes by record number, is written, which is what readers look at. So nobody waits for a lock,
    a reader sees all of an entry or nothing, and a process that is killed leaves a hole. Every
    entry has a checksum, over its record's number and size too. Nothing is evicted: see
    `datasets.caches.ram.KeepStore`.

    Args:
        folder: Where it lies; made if it is not there.
        name: Names its file.
        count: Number of records.
        max_bytes: Of all caches in the folder.

    Attributes:
        damaged: Entries that this process found to be damaged, and dropped.
        wants_more: Whether another entry may be admitted.

    Raises:
        ValueError: The folder cannot be used, or the table alone is larger than the limit.
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
        self.damaged = 0
        self.wants_more = True
        self._file: IO[bytes] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._in_use: IO[bytes] | None = _held(self.path.with_suffix(_LOCK_ENDING))
        except OSError as error:
            raise ValueError(
                f"dataset.cache.path: {folder} cannot be written or locked ({error.strerror}); "
                f"give a folder on a disk of this machine"
            ) from error

    @property
    def room_bytes(self) -> int:
        """Bytes that entries may take in all."""
        return self._max_bytes - self._start

    def close(self) -> None:
        """Close the file, which others may remove then; it is opened again when it is needed."""
        self._file = self._in_use = None

    def get_all(self, indices: Sequence[int]) -> list[bytes | None]:
        """The entries of records; None where there is none."""
        try:
            file = self._open()
            return [self._read(file.fileno(), index) for index in indices]
        except OSError as error:
            self._admit_no_more(error)
            return [None] * len(indices)

    def put_all(self, entries: Sequence[tuple[int, Entry]]) -> None:
        """Keep entries, as far as there is room."""
        try:
            if self._has_room(sum(_HEAD.size + entry.size_bytes for _, entry in entries)):
                self._append(entries)
        except OSError as error:
            self._admit_no_more(error)

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
        file = self._open()
        if not is_at(self.path, file.fileno()):  # somebody has removed it
            self.close()
            file = self._open()
        # An open file of our own, whose position is the end of what we wrote, and of no other.
        end = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            for index, entry in dict(entries).items():
                place = os.pread(file.fileno(), _PLACE.size, _PLACE.size * index)
                if any(place) or entry.size_bytes > _MOST_BYTES:
                    continue  # another process had the same miss, or one call cannot write it
                parts = entry.parts
                if len(parts) >= _MOST_PARTS:
                    parts = [b"".join(parts)]
                size_bytes = entry.size_bytes
                head = _HEAD.pack(size_bytes, _checksum(index, size_bytes, parts))
                written = os.writev(end, [head, *parts])
                if written == _HEAD.size + size_bytes:  # else there is no room, says the next
                    at = os.lseek(end, 0, os.SEEK_CUR) - written
                    os.pwrite(file.fileno(), _PLACE.pack(at), _PLACE.size * index)
        finally:
            os.close(end)

    def _open(self) -> IO[bytes]:
        """The file, made if it is not there."""
        while (file := self._file) is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._in_use = _held(self.path.with_suffix(_LOCK_ENDING))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            file = open(descriptor, "r+b", buffering=0)
            at = self._start - len(_MARK)
            if os.fstat(descriptor).st_size < self._start:
                os.pwrite(descriptor, _MARK, at)  # whoever else makes it writes the same
            elif os.pread(descriptor, len(_MARK), at) != _MARK:
                self._count_damage(f"{self.path.name} is damaged and deleted")
                self.path.unlink(missing_ok=True)
                continue
            self._file = file
        return file

    def _admit_no_more(self, error: OSError) -> None:
        if self.wants_more:
            self.wants_more = False
            _log.warning(
                "cache %s: nothing more is admitted (%s); what it holds is still used",
                self.path.parent, error.strerror,
            )  # fmt: skip

    def _count_damage(self, what: str) -> None:
        self.damaged += 1
        if self.damaged == 1:
            _log.warning(
                "cache %s: %s; what it held is read from the data; other damage is only counted",
                self.path.parent, what,
            )  # fmt: skip

    def _has_room(self, size_bytes: int) -> bool:
        """Whether so much more can be written; caches that nobody uses make room."""
        while True:
            total = sum(_size(path) for path in self.path.parent.glob(f"*{_ENDING}"))
            if max(total, self._start) + size_bytes <= self._max_bytes:
                return True
            if not self._remove_oldest():
                self.wants_more = False
                return False

    def _remove_oldest(self) -> bool:
        """Remove the cache that was opened longest ago, of those that no process has open."""
        for lock in sorted(self.path.parent.glob(f"*{_LOCK_ENDING}"), key=_opened):
            with contextlib.suppress(OSError), open(lock, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.with_suffix("").unlink(missing_ok=True)
                lock.unlink()
                return True
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self.path.parent, self.path.stem, self._count, self._max_bytes)


def _opened_again(folder: Path, name: str, count: int, max_bytes: int) -> DiskStore:
    return DiskStore(folder, name=name, count=count, max_bytes=max_bytes)


def _held(path: Path) -> IO[bytes]:
    """A lock that says that a cache is in use, and since when."""
    while True:
        file = open(path, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            os.utime(path)
            if is_at(path, file.fileno()):
                return file
        except FileNotFoundError:  # removed by another process between the two lines
            pass
        except BaseException:
            file.close()
            raise
        file.close()


def _checksum(index: int, size_bytes: int, parts: Sequence[Buffer]) -> int:
    checksum = zlib.crc32(_HEAD.pack(index, size_bytes))  # so that zeros are no entry
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _opened(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0
