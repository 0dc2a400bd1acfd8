"""Storage of records in the rows of HDF5 data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import StorageCapabilities
from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.data_files import DataFiles, find_data_files
from penstock.datasets.files.group_cache import GroupCache
from penstock.datasets.records.index import IndexContent
from penstock.datasets.records.indexed_storage import IndexedStorage
from penstock.datasets.records.labels import column_ids, read_class_names, refuse_twice
from penstock.datasets.records.split_names import SPLIT_OF
from penstock.datasets.storages.hdf5.file import (
    DAMAGE,
    File,
    explained,
    follow,
    need_h5py,
)
from penstock.datasets.storages.hdf5.rows import MISSING
from penstock.datasets.storages.hdf5.samples import Samples

ENDINGS = (".h5", ".hdf5", ".hdf", ".he5")
_MOST_OPEN = 1024


@register("storage", "hdf5")
class Hdf5Storage(IndexedStorage):
    """HDF5 files: data sets whose rows are the samples.

    A data set is a field: ``images`` is ``image``, ``labels`` is ``label`` (class ids or names),
    and others keep their names. Images are uint8 [N, H, W, C], or encoded files as rows of
    variable length. Keys are the rows of a data set ``keys``, or row numbers over all files. Class
    names are a data set or an attribute ``class_names``, ``classes`` or ``label_names``, or the
    lines of ``classes.txt``.

    Contiguous arrays are mapped. In chunked arrays, a batch decodes each chunk that it touches
    once: for shuffled reading, use small chunks or none. Damage inside of numbers is found only in
    chunks with Fletcher's checksums.

    Args:
        path: A file, a folder of ``.h5`` files, or a pattern such as ``data/part-*.h5``. A group
            follows the file: ``data.h5/train``. Groups train, val and test of a file are parts.
        fields: Paths of data sets below the group, by field: ``{image: camera/rgb}``; None: all.
        classes: Class names by id; None: the names in the files, or the labels.
        cache_bytes: Size of the cache of decoded chunks of each process.
    """

    name = "hdf5"
    reading_arguments = ("cache_bytes",)
    index_version = 4

    def __init__(
        self,
        path: str,
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        cache_bytes: Annotated[int, Ge(0)] = 128 << 20,
    ) -> None:
        self.path = os.path.abspath(path)
        self.field_paths = None if fields is None else {f: p.strip("/") for f, p in fields.items()}
        self.classes = None if classes is None else tuple(classes)
        self.cache_bytes = cache_bytes
        self._files: DataFiles
        self._ends: NDArray[np.int64]

    @staticmethod
    def parts_inside(path: str) -> dict[str, str] | None:
        """Find the groups ``train``, ``val`` and ``test`` of a file; None without ``train``."""
        name, group = _data_path(os.path.abspath(path))
        try:
            with explained():
                need_h5py()
                import h5py

                with h5py.File(name) as file:
                    top = follow(file["/"], group)
                    parts = [part for part in SPLIT_OF if isinstance(top.get(part), h5py.Group)]
        except (*DAMAGE, OSError) as error:  # reported when the storage opens the file
            if is_trouble(error):
                raise
            return None
        found = {SPLIT_OF[part]: os.path.join(path, part) for part in parts}
        return found if "train" in found and len(found) > 1 else None

    @property
    def capabilities(self) -> StorageCapabilities:
        """Declare that it gives columns."""
        return StorageCapabilities(columns=self)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of every record; empty unless all are arrays of fixed shape."""
        return tuple(self.index.metadata["fields"])

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read records; arrays may be read-only views.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: Trouble of the disk that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        found: list[dict[str, Any] | str] = [{} for _ in range(len(indices))]
        for number, places, rows in self._by_file(self.index.rows(indices)):
            for name, values in self._values(number, rows):
                for place, value in zip(places.tolist(), values, strict=True):
                    fields = found[place]
                    if isinstance(fields, str) or value is MISSING:
                        continue
                    if isinstance(value, RecordError):
                        found[place] = f"{name}: {value}"
                    else:
                        fields[name] = value
        return self.records(indices, found)

    def take(
        self,
        indices: NDArray[np.int64],
        fields: Collection[str],
        *,
        allocate: Callable[[int], Any] | None = None,
    ) -> dict[str, NDArray[Any]] | None:
        """Read records as columns; None if one is bad. See `core.contracts.ColumnStorage`.

        Raises:
            IndexError: An index is outside 0 .. len - 1.
            OSError: Trouble of the disk that did not pass.
        """
        indices = np.asarray(indices, np.int64)
        rows, taken = self.index.rows(indices), dict[str, NDArray[Any]]()
        try:
            first = {
                n: r for n, r in self._samples(0).fields.items() if n in fields and n != "label"
            }
            largest = max(first, key=lambda name: first[name].row_bytes, default=None)
            for name, reader in first.items():
                memory = None
                if allocate is not None and name == largest:
                    memory = memoryview(allocate(len(rows) * reader.row_bytes))
                taken[name] = np.ndarray((len(rows), *reader.shape[1:]), reader.native, memory)
            for number, places, inside in self._by_file(rows):
                for name, out in taken.items():
                    self._samples(number).fields[name].gather(places, inside, out)
        except DAMAGE:
            return None
        if "label" in fields and "label" in self.index.columns:
            taken["label"] = self.index.values("label", indices)
        return taken

    def mark(self) -> Any:
        """Names, sizes and times of the files, and the names of the classes beside them."""
        path, _ = _data_path(self.path)
        self._files = find_data_files(path, endings=ENDINGS, where=str(self))
        return [self._files.recipe, read_class_names(self._files.root, where=str(self))]

    def scan(self) -> IndexContent:
        """Index the records of all files, one open at a time."""
        found: list[Samples] = []
        sizes, keys, labels = list[Any](), list[bytes](), list[Any]()
        names = class_names = None
        for number, name in enumerate(self._files.names):
            try:
                found.append(samples := self._open(number, GroupCache(0)))
                with samples.file.h5:
                    sizes.append(samples.sizes())
                    keys += samples.raw_keys()
                    labels.append(samples.labels())
                    names = samples.class_names() if number == 0 else names
            except (*DAMAGE, OSError) as error:
                where = f"{self}: {name}" if len(self._files.names) > 1 else str(self)
                text = f"{where}: {error}".encode("utf-8", "surrogateescape")
                raise ValueError(text.decode("utf-8", "backslashreplace")) from error
            if samples.needed != found[0].needed:
                raise ValueError(
                    f"{self}: {name}: has {', '.join(samples.needed)}, and {self._files.names[0]} "
                    f"has {', '.join(found[0].needed)}; write the same data sets into all files, "
                    f"or name those to read in dataset.storage.fields"
                )
        columns: dict[str, NDArray[Any]] = {"size_bytes": np.concatenate(sizes)}
        count = len(columns["size_bytes"])
        if not count:
            raise ValueError(f"{self}: the data sets are empty, expected a row for each sample")
        refuse_twice(keys, where=str(self), remedy="give each record its own key")
        if labels[0] is not None:
            joined = np.concatenate(labels)
            columns["label"], class_names = column_ids(
                joined.tolist() if joined.dtype == object else joined,
                names=names or read_class_names(self._files.root, where=str(self)),
                classes=self.classes,
                where=f"{self}: label",
            )
        counts, kinds = zip(*((each.count, each.kinds()) for each in found), strict=True)
        images = [kind.get("image") for kind in kinds]
        if None not in images:
            sides = np.repeat([shape[:2] for _, shape in images], counts, axis=0)
            columns["height"], columns["width"] = sides.astype(np.int32).T.copy()
        is_even = kinds.count(kinds[0]) == len(kinds) and None not in kinds[0].values()
        fields = [*kinds[0], *columns.keys() & {"label"}]
        named: Any = {"keys": keys} if keys else {"key_pattern": "{}", "count": count}
        return {
            **named,
            "columns": columns,
            "class_names": class_names,
            "content": repr(kinds[0]),
            "metadata": {"counts": counts, "fields": fields if is_even else []},
        }

    def learn(self, metadata: dict[str, Any]) -> None:
        """Keep the number of rows of each file."""
        self._ends = np.cumsum(np.array(metadata["counts"], np.int64))

    def open(self) -> tuple[GroupCache, GroupCache]:
        """Prepare caches of open files and of decoded chunks."""
        return GroupCache(_MOST_OPEN), GroupCache(self.cache_bytes)

    def _samples(self, number: int) -> Samples:
        files, chunks = self.opened
        samples: Samples = files.get(number, lambda: (self._open(number, chunks), 1))
        return samples

    def _open(self, number: int, chunks: GroupCache) -> Samples:
        path, group = self._files.paths[number], _data_path(self.path)[1]
        file = File(path, self._files.root, chunks, self.max_record_bytes)
        try:
            return file.asked(lambda: Samples(file, group, self.field_paths))
        except BaseException:
            file.h5.close()
            raise

    def _values(self, number: int, rows: NDArray[np.int64]) -> Iterator[tuple[str, list[Any]]]:
        """Read rows of a file: the values of each field, or a `RecordError`."""
        try:
            for name, reader in self._samples(number).fields.items():
                if name != "label":
                    yield name, reader.values(rows)
        except DAMAGE as error:
            yield self._files.names[number], [RecordError(str(error))] * len(rows)

    def _by_file(
        self, rows: NDArray[np.int64]
    ) -> list[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """Split rows by file: its number, their places in `rows`, and their rows in the file."""
        numbers = np.searchsorted(self._ends, rows, side="right")
        starts = np.concatenate([[0], self._ends])
        places = [(int(number), np.flatnonzero(numbers == number)) for number in np.unique(numbers)]
        return [(number, where, rows[where] - starts[number]) for number, where in places]


def _data_path(path: str) -> tuple[str, str]:
    """Split a path such as ``data.h5/train`` into the path of files and the group in them."""
    parts = path.split(os.sep)
    for count in range(len(parts), 0, -1):
        start = os.sep.join(parts[:count]) or os.sep
        if os.path.exists(start) or start.lower().endswith(ENDINGS):
            if os.path.isdir(start) and count < len(parts):
                break
            return start, "/".join(parts[count:])
    return path, ""
