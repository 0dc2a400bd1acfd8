"""Tar archives of samples as a stream: from files, commands, sockets or the standard input."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Ge, Gt

from datasets.byte_shards import ByteShards
from datasets.file_reader import MissingFile
from datasets.formats.tar_samples import SampleFields
from datasets.formats.tar_stream import Place, TarItem, TarShard
from datasets.sample import BadRecord, Record
from datasets.shared_file import EndOfFile, OpenFiles
from datasets.stream_labels import StreamLabels
from pipeline.registry import register


@register("source", "webdataset")
class WebDatasetSource:
    """Tar archives of samples, each read from its start to its end.

    Members that stand beside each other and have one key are a sample, as in the webdataset
    library. From plain files, also from those, only headers are read here, and workers read the
    content of their samples from its place.

    Args:
        path: A ``.tar`` or ``.tar.gz`` file, a folder of them, a pattern with ``*`` or
            ``{000..099}``; ``pipe:command arguments`` for each archive, run without a shell;
            ``tcp://host:port``, ``unix:/path``; or ``-``, the standard input.
        fields: Extensions by field, such as ``{image: "jpg;png", label: cls}``; None: each
            extension is the field that is usual for its kind.
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            the folder. A stream cannot be looked through for them.
        timeout_s: Seconds that a command or a socket may take for its next byte.
    """

    def __init__(
        self,
        path: str,
        *,
        fields: Mapping[str, str] | None = None,
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        self.path = path
        self._shards = ByteShards(
            path, endings=(".tar", ".tar.gz", ".tgz"), timeout_s=timeout_s, where=str(self)
        )
        self._labels = StreamLabels(classes, folder=self._shards.root)
        self._fields = SampleFields(fields)
        self._opened = OpenFiles(self._shards.root)

    def __str__(self) -> str:
        return f"webdataset {self.path}"

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes by label."""
        return self._labels.names

    @property
    def reopens(self) -> bool:
        """Whether the archives can be read again: files and commands can."""
        return self._shards.reopens

    def shards(self, epoch: int) -> Sequence[str]:
        """The archives."""
        return self._shards.names

    def open(self, shard: str) -> TarShard:
        """Read an archive."""
        return TarShard(self._shards.open(shard), takes=self._fields.takes)

    def load(self, item: TarItem) -> Record | BadRecord:
        """The record of a sample; one that is damaged is a bad record."""
        try:
            members = {name: self._bytes(item, name) for name in item.members}
            fields = self._fields.read(members)
            if "label" in fields:
                fields["label"] = self._labels.id_of(fields["label"])
        except (ValueError, EndOfFile, MissingFile) as error:
            return BadRecord(-1, item.key, str(error))
        return Record(-1, item.key, fields)

    def _bytes(self, item: TarItem, extension: str) -> bytes:
        content = item.members[extension]
        value = content.value
        if isinstance(value, Place):
            name = os.path.relpath(item.archive, self._shards.root)
            value = self._opened[name].read(value.offset, value.size_bytes)
        if content.crc32 is not None and zlib.crc32(value) != content.crc32:
            raise ValueError(f"its {extension} is damaged (checksum); copy the archive again")
        return value

    def fingerprint(self) -> str:
        """Hash of the archives' names and sizes, or of the commands."""
        return self._shards.fingerprint()
