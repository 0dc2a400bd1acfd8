"""Many `.npy` and `.npz` files of one or more samples each."""

from __future__ import annotations

import os
from typing import Any

from datasets.annotations.file_labels import FileLabels
from datasets.data_files import DataFiles
from datasets.file_reader import read_file
from datasets.formats.npy_bytes import view_npy
from datasets.formats.npy_shards import load_npz, look_at_npy_shards, open_npy_shard
from datasets.protocols import Storage
from datasets.sample_files import SampleFiles
from datasets.shard_rows import OpenShard
from datasets.shard_storage import ShardStorage
from datasets.shards import Shard
from pipeline.registry import register

ENDINGS = (".npy", ".npz")


@register("storage", "npy_shards")
def open_npy_shards(
    path: str,
    *,
    rows: bool = True,
    labels: str | None = "folder",
    label_pattern: str | None = None,
    classes: list[str] | None = None,
    kinds: dict[str, str] | None = None,
    checksums: bool = False,
) -> Storage:
    """Arrays in many `.npy` and `.npz` files; nothing in them is ever unpickled.

    With `rows`, the first axis of an array is that of the samples. A `.npy` file holds one field
    of some of them: ``images_007.npy`` is the field ``image`` of shard 007, and
    ``labels_007.npy``, ``images/007.npy`` or ``007/images.npy`` belong to it. An `.npz` file is
    a shard with a member for each field; members that are not compressed are mapped like files.
    All shards have the same fields; where they agree in shape and type too, batches are taken as
    a whole. Large rows are read-only views of the map. ``keys`` holds the keys; without
    them a key is the number of the row. Values of differing lengths lie end to end in
    ``texts_007.npy``, and ``texts.offsets_007.npy`` says where each begins and the last ends;
    ``texts.shapes_007.npy`` has their shapes if they have more than one axis.

    Without `rows`, a file is a sample: a `.npy` file the field ``array``, an `.npz` file a field
    for each member. Keys are paths; labels come from where those of an image folder do.

    Args:
        path: A folder, a file, or a pattern.
        rows: Whether files hold samples along their first axis, or are one sample each.
        labels: Without `rows`: ``folder``, ``filename``, the path of a CSV with the columns key
            and label, ``file`` (the files hold them; all are read once), or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        classes: Class names by id; None: with `rows`, the lines of ``classes.txt``, or the
            numbers; without, those found.
        kinds: What fields of differing lengths hold, if no arrays: ``bytes``, ``text`` (UTF-8) or
            ``json``.
        checksums: Compare the members of `.npz` files with their checksums when a process opens
            a file, for which it reads all of it. Compressed ones always are.
    """
    if not rows:
        path = os.path.abspath(path)
        return SampleFiles(
            "npy_shards",
            path,
            endings=ENDINGS,
            load=load_sample,
            labels=FileLabels.of(labels, label_pattern, folder=path, own=True),
            classes=classes,
        )
    return ShardStorage("npy_shards", path, form=NpyFormat(kinds or {}, checksums), classes=classes)


class NpyFormat:
    """Shards of `.npy` and `.npz` files; see `datasets.shard_storage.ShardFormat`."""

    endings: tuple[str, ...] = ENDINGS

    def __init__(self, kinds: dict[str, str], checksums: bool) -> None:
        self.kinds = kinds
        self.checksums = checksums

    def look(self, files: DataFiles, *, where: str) -> list[Shard]:
        """The shards that the files make up."""
        return look_at_npy_shards(files, self.kinds, where=where)

    def open(self, shard: Shard, files: DataFiles) -> OpenShard:
        """The arrays of a shard."""
        return open_npy_shard(shard, files, checksums=self.checksums)


def load_sample(path: str, root: str) -> dict[str, Any]:
    """The fields of the sample in a file; ValueError where it is damaged."""
    if path.lower().endswith(".npz"):
        return load_npz(path, root=root, where="it")
    return {"array": view_npy(read_file(path, root=root))}
