"""Storage of records in the rows of HDF5 data sets."""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

from penstock.core.registry import register
from penstock.core.sample import RecordError
from penstock.datasets.array_shards.shards import Columns
from penstock.datasets.array_shards.storage import ArrayStorage
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.split_names import SPLIT_OF
from penstock.datasets.storages.hdf5.file import File, import_h5py
from penstock.datasets.storages.hdf5.rows import Rows

_BYTES = ("image", "images", "mask", "masks", "key", "keys")


@register("storage", "hdf5")
class Hdf5Storage(ArrayStorage):
    """HDF5 files: data sets whose rows are the samples.

    A data set is a field: ``images`` is ``image``, ``labels`` is ``label`` (class ids or names),
    and others keep their names. Images are uint8 [N, H, W, C], or encoded files as rows of
    variable length. Keys are the rows of a data set ``keys``, or row numbers over all files.

    Contiguous arrays are mapped. In chunked arrays, a batch decodes each chunk that it touches
    once: for shuffled reading, use small chunks or none. Damaged numbers are detected only in
    chunks with Fletcher's checksums.

    Args:
        path: A file, a folder of ``.h5`` files, or a pattern such as ``data/part-*.h5``. A group
            follows the file: ``data.h5/train``. Groups train, val and test of a file are splits.
        fields: Paths of data sets below the group, by field: ``{image: camera/rgb}``; None: all.
        classes: Class names by id; None: the lines of ``classes.txt``, or the labels.
    """

    name = "hdf5"
    endings = (".h5", ".hdf5", ".hdf", ".he5")
    index_version = 9

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
    ) -> None:
        super().__init__(path, classes=classes)
        self.fields = fields

    @property
    def data_path(self) -> str:
        return _data_path(self.path)[0]

    @staticmethod
    def parts_inside(path: str) -> dict[str, str]:
        """Return the paths of the groups ``train``, ``val`` and ``test`` of a file, by split."""
        name, group = _data_path(os.path.abspath(path))
        if not os.path.isfile(name):
            return {}
        words: list[str] = []
        with contextlib.suppress(RecordError, OSError):  # the storage reports it
            file = File(name, os.path.dirname(name))
            with file.h5:
                top = file.call(lambda: file.open(group))
                words = [w for w in SPLIT_OF if top.get(w, getclass=True) is import_h5py().Group]
        parts = {SPLIT_OF[word]: os.path.join(path, word) for word in words}
        return parts if "train" in parts and len(parts) > 1 else {}

    def columns(self, path: str, root: str) -> Columns:
        file = File(path, root)
        try:
            return file.call(lambda: self._columns_of(file))
        except BaseException:
            file.h5.close()
            raise

    def _columns_of(self, file: File) -> Columns:
        h5py, group = import_h5py(), _data_path(self.path)[1]
        top = file.open(group)
        if not isinstance(top, h5py.Group):
            raise RecordError(f"{group!r} is a data set, expected a group of data sets")
        paths = {name: name for name in top if self.fields is None or name in ("key", "keys")}
        # Not a strong reference, which would keep the file open after the storage is gone.
        chunks: Any = GroupCache(0) if self._index is None else weakref.proxy(self.opened)
        columns: dict[str | None, Any] = {}
        for name, path in {**paths, **(self.fields or {})}.items():
            found = file.open(f"{group}/{path.strip('/')}".strip("/"))
            if isinstance(found, h5py.Dataset) or self.fields is not None:
                rows = Rows(file, found, name, chunks, is_raw=name in _BYTES)
                mapped = None if rows.dtype.hasobject else rows.mapped()
                if mapped is None or mapped.dtype != rows.dtype or not mapped.flags.aligned:
                    columns[name] = rows
                else:
                    columns[name] = mapped
        if not columns:
            raise RecordError(
                f"no data sets in /{group}, but groups {list(top)[:4]}; expected data sets of "
                f"samples in rows; add a group to the path, or, for a group per sample, type "
                f"dataset=torch with the class in docs/moving.md"
            )
        return columns


def _data_path(path: str) -> tuple[str, str]:
    """Split a path such as ``data.h5/train`` into the path of files and the group in them."""
    parts = path.split(os.sep)
    for count in range(len(parts), 0, -1):
        start = os.sep.join(parts[:count])
        if start.lower().endswith(Hdf5Storage.endings) and not os.path.isdir(start):
            return start, "/".join(parts[count:])
    return path, ""
