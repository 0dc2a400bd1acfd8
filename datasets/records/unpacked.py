"""Decompress shards into this machine's cache, to read records by offset."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from penstock.core.machine_cache import computed_once, signature_of
from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile, is_url
from penstock.datasets.files.byte_streams import ByteStream
from penstock.datasets.files.data_files import DataFiles
from penstock.datasets.records.indexed_storage import file_mark

_LEFT_FREE_BYTES = 1 << 30
_PIECE_BYTES = 8 << 20
_TIMEOUT_S = 120.0  # for streams, which may stall


class CompressedFile(RecordError):
    """A file is compressed with gzip or zstd and must be decompressed first."""


class UnpackedShards:
    """Open shards; use decompressed copies of compressed shards."""

    def __init__(self, files: DataFiles, compressed: Collection[str]) -> None:
        self._files = files
        self._compressed = frozenset(compressed)
        self._copies: dict[str, Path] = {}

    def open(self, name: str) -> RangeFile:
        """Open a shard; decompress it again if its copy is gone."""
        if name not in self._compressed:
            return self._files.open(name)
        return self.unpacked(name)[0]

    def unpacked(self, name: str) -> tuple[RangeFile, int]:
        """Open the decompressed copy of a shard and return it with its size."""
        copy = self._copies.get(name)
        if copy is None or not copy.exists():
            copy = self._copies[name] = unpack(self._files, name)
        return RangeFile(str(copy), root=str(copy.parent)), os.stat(copy).st_size


def unpack(files: DataFiles, name: str) -> Path:
    """Decompress a shard, once for all runs of this machine until it changes."""
    path, mark = os.path.join(files.root, name), files.marks[files.names.index(name)]
    etag = str(mark[1]) if is_url(path) else None

    def make(copy: Path) -> None:
        stream = ByteStream(path, timeout_s=_TIMEOUT_S, mark=None if etag is None else mark)
        with closing(stream), open(copy, "wb") as file:
            try:
                while piece := stream.read(_PIECE_BYTES):
                    left_bytes = shutil.disk_usage(copy.parent).free
                    if left_bytes < min(stream.offset, _LEFT_FREE_BYTES):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    file.write(piece)
            except RecordError as error:
                raise ValueError(f"{path}: {error}; copy it again") from error
        if etag is None and file_mark(path) != list(mark):
            raise ValueError(f"{path}: was changed since it was looked at; start again")

    copy, _ = computed_once(
        f"copy-{signature_of(unpacked=path, mark=mark)}",
        ".tar",
        make=make,
        load=lambda copy: copy,
        what=f"unpacked copy of {path}",
    )
    return copy
