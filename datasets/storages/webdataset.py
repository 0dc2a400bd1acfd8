"""Samples in tar shards, as the webdataset library writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.annotations.label_columns import column_ids
from datasets.data_files import DataFiles, find_data_files
from datasets.file_reader import MissingFile
from datasets.file_runs import Run, find_runs
from datasets.formats.tar_headers import BadTar, shown
from datasets.formats.tar_indexing import scan_shards
from datasets.formats.tar_samples import SampleFields
from datasets.formats.tar_shards import read_sample
from datasets.index import Index, write_index
from datasets.index_cache import cached_index
from datasets.indexed_storage import IndexedStorage
from datasets.sample import BadRecord, Record
from datasets.shared_file import OpenFiles
from pipeline.registry import register

CLASSES_NAME = "classes.txt"
_ENDINGS = (".tar", ".tgz")  # the second to be refused, and not passed over


@register("storage", "webdataset")
class WebDatasetStorage(IndexedStorage):
    """Tar shards, read by random access: they shuffle fully and resume exactly.

    Members that stand beside each other with one path up to the first dot of its last part are a
    sample, and that path is its key. Their extensions say what they are: images are ``image``,
    ``cls`` ``label``, ``txt`` ``text``, ``npy`` ``array``, ``caption.txt`` ``caption``, and the
    items of a JSON object are fields of their own; see `datasets.formats.tar_samples.SampleFields`.
    Shards are indexed by their headers, once; nothing is extracted, and nothing unpickled.

    Args:
        path: A shard, a folder of ``.tar`` files, a pattern such as ``train-{000..099}.tar`` or
            ``train-*.tar``, or a list of these.
        fields: Extensions by field, such as ``{image: jpg;png, label: cls}``: the first one that
            a sample has; its other members are left out. None: every member is a field.
        classes: Class names by id; None: the lines of ``classes.txt`` in the folder, or else those
            found, sorted (numbers are ids already).
        shard_keys: Put the shard's name before the keys, for shards that each count anew.
        checksums: Compare members with their checksums; only packing writes any.
    """

    name = "webdataset"

    def __init__(
        self,
        path: str | list[str],
        *,
        fields: dict[str, str] | None = None,
        classes: list[str] | None = None,
        shard_keys: bool = False,
        checksums: bool = True,
    ) -> None:
        paths = [path] if isinstance(path, str) else path
        if not paths:
            raise ValueError("webdataset: path is an empty list; set dataset.storage.path")
        self.paths = tuple(map(os.path.abspath, paths))
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        self.path = self.paths[0] + more
        self.fields = None if fields is None else dict(fields)
        self.classes = None if classes is None else tuple(classes)
        self.shard_keys = shard_keys
        self.checksums = checksums
        self._fields = SampleFields(fields)
        self._index: Index | None = None
        self._files: DataFiles | None = None
        self._opened: OpenFiles | None = None

    @property
    def index(self) -> Index:
        """Key, label, size_bytes and place of every sample."""
        if self._index is None:
            files = find_data_files(self.paths, endings=_ENDINGS, where=str(self))
            names = _class_names(files.root, where=str(self))
            self._files = files
            self._index = cached_index(
                {**self._recipe("checksums"), "names": names},
                build=lambda path: self._build(path, files, names),
                is_current=lambda index: index.metadata["files"] == files.recipe,
            )
        return self._index

    def read(self, indices: NDArray[np.int64]) -> list[Record | BadRecord]:
        """Read samples, those beside each other at once; one that is damaged is a bad record.

        Raises:
            OSError: The disk has trouble that did not pass.
        """
        index, indices = self.index, np.asarray(indices, np.int64)
        columns = {name: index.values(name, indices) for name in index.columns}
        labels = columns["label"].tolist() if "label" in columns else None
        keys, raw_keys = index.keys(indices), index.raw_keys(indices)
        records: list[Any] = [None] * len(indices)
        for run in find_runs(columns["shard"], columns["offset"], columns["span_bytes"]):
            name, data = self._read_run(run)
            prefix = self._prefix(name)
            for n, start, stop in run.parts:
                try:
                    if isinstance(data, str):
                        raise BadTar(data)
                    if len(data) < stop:
                        raise BadTar("its shard has become shorter; copy it again")
                    raw_key = raw_keys[n].removeprefix(prefix)
                    fields = read_sample(
                        data, start, stop, raw_key, self._fields, checksums=self.checksums
                    )
                    if labels is not None:
                        fields["label"] = labels[n]
                    elif "label" in fields:
                        raise BadTar("its json has a label, and that of the first sample had none")
                    records[n] = Record(int(indices[n]), keys[n], fields)
                except ValueError as error:
                    records[n] = BadRecord(int(indices[n]), keys[n], f"{name}: {error}")
        return records

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_index": self.index, "_files": self._files, "_opened": None}

    def _read_run(self, run: Run) -> tuple[str, bytes | str]:
        """The shard of a run, and the run's bytes, or why they cannot be had."""
        assert self._files is not None
        if self._opened is None:
            self._opened = OpenFiles(self._files.root)
        name = self._files.names[run.file]
        try:
            return name, self._opened[name].read_upto(run.offset, run.size_bytes)
        except MissingFile as error:
            return name, str(error)

    def _prefix(self, name: str) -> bytes:
        """What stands before the keys of a shard."""
        return os.fsencode(os.path.splitext(name)[0]) + b"/" if self.shard_keys else b""

    def _build(self, path: Path, files: DataFiles, names: tuple[str, ...] | None) -> None:
        """Look through the headers of all shards."""
        scans = scan_shards(files, self._fields, where=str(self))
        keys = [
            self._prefix(name) + key
            for name, scan in zip(files.names, scans, strict=True)
            for key in scan.keys
        ]
        if not keys:
            raise ValueError(
                f"{self}: no sample in there; expected members such as 0001.jpg and 0001.cls; set "
                f"dataset.storage.path"
            )
        counts = [len(scan.keys) for scan in scans]
        columns: dict[str, NDArray[Any]] = {
            "shard": np.repeat(np.arange(len(scans), dtype=np.int32), counts),
            "offset": np.concatenate([scan.offset for scan in scans]),
            "span_bytes": np.concatenate([scan.span_bytes for scan in scans]),
            "size_bytes": np.concatenate([scan.size_bytes for scan in scans]),
        }
        self._refuse_twice(keys, columns["shard"], files)
        labels = [label for scan in scans for label in scan.labels]
        class_names = None
        if any(label is not None for label in labels):
            columns["label"], class_names = self._class_ids(keys, labels, names)
        write_index(
            path,
            keys=keys,
            columns=columns,
            class_names=class_names,
            metadata={"files": files.recipe},
        )

    def _refuse_twice(self, keys: list[bytes], shards: NDArray[Any], files: DataFiles) -> None:
        if len(set(keys)) == len(keys):
            return
        first: dict[bytes, int] = {}
        for row, key in enumerate(keys):
            if (other := first.setdefault(key, row)) != row:
                a, b = (files.names[shards[n]] for n in (other, row))
                raise ValueError(
                    f"{self}: {shown(key)} stands twice, in {a} and {b}; write every sample once "
                    f"and into one shard, or, if each shard counts anew, set "
                    f"dataset.storage.shard_keys=true"
                )

    def _class_ids(
        self, keys: list[bytes], labels: list[int | str | None], names: tuple[str, ...] | None
    ) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Class ids, int32 [n], and the class names by id."""
        if (missing := labels.count(None)) > 0:
            raise ValueError(
                f"{self}: {missing:,} of {len(labels):,} samples have no label, such as "
                f"{shown(keys[labels.index(None)])}; add them, or take none: "
                f"dataset.storage.fields={{image: jpg}}"
            )
        where = f"{self}: labels"
        if all(isinstance(label, int) for label in labels):
            numbers = np.array(labels, np.int64)
            return column_ids(numbers, names=names, classes=self.classes, where=where)
        return column_ids(list(map(str, labels)), classes=self.classes or names, where=where)


def _class_names(folder: str, *, where: str) -> tuple[str, ...] | None:
    """The lines of a file of class names, if there is one."""
    try:
        text = Path(folder, CLASSES_NAME).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: {CLASSES_NAME} cannot be read ({error})") from error
    return tuple(text.removesuffix("\n").split("\n"))
