"""Tar archives of samples as a stream: from files, commands, sockets or the standard input."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError, too_large
from penstock.datasets.files.access import OpenFiles
from penstock.datasets.files.byte_streams import ByteStream, StreamError
from penstock.datasets.storages.webdataset.headers import CutShort, iter_members
from penstock.datasets.storages.webdataset.layout import (
    SampleFields,
    extension_text,
    iter_samples,
    split_name,
)
from penstock.datasets.streams.byte_source import ByteSource, FoundShards


@register("source", "webdataset")
class WebDatasetSource(ByteSource):
    """Tar archives of samples, each read from its start to its end.

    Members that stand beside each other and have one key are a sample, as in the webdataset
    library. From plain files, also from those, only headers are read here, and workers read the
    content of their samples from its place.

    Args:
        path: A ``.tar``, ``.tar.gz`` or ``.tar.zst`` file, a folder of them, a pattern with ``*``
            or ``{000..099}``; ``pipe:command arguments`` for each archive, run without a shell;
            ``tcp://host:port``, ``unix:/path``; or ``-``, the standard input.
        fields: Extensions by field, such as ``{image: "jpg;png", label: cls}``; None: each
            extension is the field that is usual for its kind.
        classes: Class names by id, or how many there are; None: the lines of ``classes.txt`` in
            the folder. A stream cannot be looked through for them.
        timeout_s: Seconds that a command or a socket may take for its next byte.
    """

    name = "webdataset"

    def __init__(
        self,
        path: str,
        *,
        fields: Mapping[str, str] | None = None,
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        super().__init__(
            path,
            endings=(".tar", ".tar.gz", ".tgz", ".tar.zst"),
            classes=classes,
            timeout_s=timeout_s,
        )
        self._fields = SampleFields(fields, setting="dataset.source.fields")
        self._opened = OpenFiles(FoundShards(self.root, self._marks))

    def open(self, shard: str) -> TarShard:
        """Read an archive."""
        return TarShard(
            self._stream(shard), takes=self._fields.takes, max_bytes=self.max_record_bytes
        )

    def load(self, item: TarItem) -> Record | BadRecord:
        """Make the record of a sample; one that is damaged is a bad record."""
        try:
            members = {name: self._bytes(item, name) for name in item.members}
            fields = self._fields.read(members)
            if "label" in fields:
                fields["label"] = self.labels.id_of(fields["label"])
        except ValueError as error:
            return BadRecord(-1, item.key, str(error))
        return Record(-1, item.key, fields)

    def _bytes(self, item: TarItem, extension: str) -> bytes:
        content = item.members[extension]
        if content.size_bytes > self.max_record_bytes:
            said = too_large(content.size_bytes, self.max_record_bytes)
            raise ValueError(f"its {extension} {said}")
        value = content.value
        if value is None:
            value = self._opened[item.archive].read(content.offset, content.size_bytes)
        if content.crc32 is not None and zlib.crc32(value) != content.crc32:
            raise ValueError(f"its {extension} is damaged (checksum); copy the archive again")
        return value


class Content(NamedTuple):
    """A member's content, or where that lies in a plain file.

    Attributes:
        value: The content; None: it is still to be read.
        offset: Where it begins.
        size_bytes: How long it is.
        crc32: Its checksum, where the archive has one.
    """

    value: bytes | None
    offset: int
    size_bytes: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class TarItem:
    """One sample of an archive, not decoded.

    Attributes:
        key: The key, as text.
        members: Content by extension.
        archive: The file that contents lie in.
    """

    key: str
    members: dict[str, Content]
    archive: str


class TarShard:
    """Read the samples of an archive, in order.

    From a plain file only the headers are read; what else there is, a command's output for
    example, is read as it comes, and dropped where it is passed over. What comes behind the end
    mark is read too: archives that were put one behind the other are all there.

    Args:
        stream: The archive's bytes; closed with this.
        takes: Which extensions are wanted; the content of others is passed over.
        max_bytes: So is content of more bytes.
    """

    def __init__(self, stream: ByteStream, *, takes: Callable[[str], bool], max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._takes = takes
        self._passing = False
        self._samples = iter_samples(self._members())
        self._ended = False

    def __iter__(self) -> Iterator[TarItem | BadRecord]:
        return self

    def __next__(self) -> TarItem | BadRecord:
        """Read the next sample; a bad record where damage ends the archive.

        Raises:
            StreamError: It broke off, stalled, or its command failed.
        """
        if self._ended:
            raise StopIteration
        stream, start = self._stream, self._stream.offset
        try:
            key, members = next(self._samples)
        except StopIteration:
            self._ended = True
            raise
        except RecordError as error:
            self._ended = True
            cause = f"between byte {start:,} and {stream.offset:,}: {error}"
            cause += "; what comes behind it in this shard is lost"
            return BadRecord(-1, stream.name, cause, ends_shard=True)
        found = {name: content for name, contents in members.items() for content in contents}
        return TarItem(key.decode("utf-8", "backslashreplace"), found, stream.name)

    def skip(self, count: int) -> int:
        """Pass over so many samples without reading their content; how many there were."""
        self._passing = True
        try:
            for passed in range(count):
                if next(self, None) is None:
                    return passed
            return count
        finally:
            self._passing = False

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()

    def _members(self) -> Iterator[tuple[bytes, bytes, list[Content]]]:
        """Name and owner of each member, and a list that its content is put in if it is wanted.

        A sample is complete when the header behind it was read. So what is done with the content
        of that next member is settled only then, when the next but one is asked for: whether it is
        read or passed over.
        """
        try:
            for member in iter_members(self._read_at):
                contents: list[Content] = []
                yield member.name, member.owner, contents
                parts = split_name(member.name)
                if self._passing or parts is None or not self._takes(extension_text(parts[1])):
                    continue
                value = None
                if self._stream.size is None and member.size_bytes <= self._max_bytes:
                    value = self._read_at(member.offset, member.size_bytes)
                    if (missing := member.size_bytes - len(value)) > 0:
                        self._refuse_end(missing)
                contents.append(Content(value, member.offset, member.size_bytes, member.crc32))
        except CutShort as error:
            self._refuse_end(error.missing_bytes)

    def _read_at(self, offset: int, size_bytes: int) -> bytes:
        """Read the bytes at a place that lies ahead, as many of them as there are."""
        gap = offset - self._stream.offset
        if (found := self._stream.skip(gap)) < gap:
            self._refuse_end(gap - found)
        return self._stream.read(size_bytes)

    def _refuse_end(self, missing: int) -> None:
        """Say that the archive was cut off; what a command or socket sends may not even be."""
        if self._stream.may_break_off:
            raise StreamError(
                f"{self._stream.name}: ended after {self._stream.offset:,} bytes, "
                f"at least {missing:,} bytes too early: it broke off"
            )
        raise RecordError(f"the archive ends at least {missing:,} bytes too early; copy it again")
