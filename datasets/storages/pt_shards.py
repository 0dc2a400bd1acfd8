"""Many `.pt` files of one or more samples each."""

from __future__ import annotations

import functools
import os
from typing import Any

from datasets.annotations.file_labels import FileLabels
from datasets.data_files import DataFiles
from datasets.formats.pt_files import load_pt, look_at_pt_shards, open_pt_shard, sample_fields
from datasets.protocols import Storage
from datasets.sample_files import SampleFiles
from datasets.shard_rows import OpenShard
from datasets.shard_storage import ShardStorage
from datasets.shards import Shard
from pipeline.registry import register

ENDINGS = (".pt", ".pth")


@register("storage", "pt_shards")
def open_pt_shards(
    path: str,
    *,
    rows: bool = True,
    labels: str | None = "folder",
    label_pattern: str | None = None,
    classes: list[str] | None = None,
    checksums: bool = False,
) -> Storage:
    """Tensors in many `.pt` files, mapped; nothing that takes running code is ever loaded.

    With `rows`, a file holds some of the samples. A dict of tensors [N, ...] or lists of N values
    is a shard with a field for each; so is a list of N dicts. A tensor or a list of tensors is
    one field, and the file's name says which: ``images_007.pt`` is the field ``image`` of shard
    007, and ``labels_007.pt``, ``images/007.pt`` or ``007/images.pt`` belong to it. All shards
    have the same fields; where they agree in shape and type too, batches are taken as a whole.
    ``keys`` holds the keys; without them a key is the number of the row.

    Without `rows`, a file is a sample: a tensor is the field ``array``, a dict a field for each
    of its values. Keys are paths; labels come from where those of an image folder do.

    Args:
        path: A folder, a file, or a pattern.
        rows: Whether files hold samples along their first axis, or are one sample each.
        labels: Without `rows`: ``folder``, ``filename``, the path of a CSV with the columns key
            and label, ``file`` (the files hold them; all are read once), or None.
        label_pattern: For ``filename``: a regular expression whose group is the label.
        classes: Class names by id; None: with `rows`, the lines of ``classes.txt``, or the
            numbers; without, those found.
        checksums: Compare a file with its checksums when a process opens it, for which all of it
            is read.
    """
    if not rows:
        path = os.path.abspath(path)
        return SampleFiles(
            "pt_shards",
            path,
            endings=ENDINGS,
            load=functools.partial(load_sample, checksums=checksums),
            labels=FileLabels.of(labels, label_pattern, folder=path, own=True),
            classes=classes,
        )
    return ShardStorage("pt_shards", path, form=PtFormat(checksums), classes=classes)


class PtFormat:
    """Shards of `.pt` files; see `datasets.shard_storage.ShardFormat`."""

    endings: tuple[str, ...] = ENDINGS

    def __init__(self, checksums: bool) -> None:
        self.checksums = checksums

    def look(self, files: DataFiles, *, where: str) -> list[Shard]:
        """The shards that the files make up."""
        return look_at_pt_shards(files, where=where)

    def open(self, shard: Shard, files: DataFiles) -> OpenShard:
        """The tensors of a shard, as arrays."""
        return open_pt_shard(shard, files, checksums=self.checksums)


def load_sample(path: str, root: str, *, checksums: bool) -> dict[str, Any]:
    """The fields of the sample in a file; ValueError where it is damaged."""
    return sample_fields(load_pt(path, root=root, where="it", checksums=checksums), "it")
