"""Stream tar archives of samples from files, commands, sockets or standard input."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple, NoReturn

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError, too_large
from penstock.datasets.files.access import OpenFiles, RangeFile
from penstock.datasets.files.byte_streams import ByteStream, StreamError
from penstock.datasets.storages.webdataset.headers import CutShort, iter_members
from penstock.datasets.storages.webdataset.layout import (
    SampleFields,
    extension_text,
    iter_samples,
    split_name,
)
from penstock.datasets.streams.byte_source import ByteSource


class Content(NamedTuple):
    """A member's content, or its place in a plain file, and its checksum if the archive has one."""

    value: bytes | None
    offset: int
    size_bytes: int
    crc32: int | None


@dataclass(frozen=True, slots=True)
class TarItem:
    """A sample of an archive: its key, and its contents by extension."""

    key: str
    members: dict[str, Content]
    archive: str


@dataclass(frozen=True, slots=True)
class _Found:
    """Opens shards by path; raises if a shard changed after the scan."""

    root: str
    marks: Mapping[str, tuple[int, int | str]]

    def open(self, name: str) -> RangeFile:
        return RangeFile(name, root=self.root, mark=self.marks.get(name))


@register("source", "webdataset")
class WebDatasetSource(ByteSource):
    """Tar archives of samples, each read from start to end.

    Adjacent members with one key are a sample, as in the webdataset library. `read` reads only
    the headers of plain files; workers read the content of their samples.

    Args:
        path: A ``.tar``, ``.tar.gz`` or ``.tar.zst`` file, a folder of them, a pattern with ``*``
            or ``{000..099}``; ``pipe:command arguments`` for each archive, run without a shell;
            ``tcp://host:port``, ``unix:/path``; or ``-``, the standard input.
        fields: Extensions by field, such as ``{image: "jpg;png", label: cls}``; None: each
            extension gives the usual field of its kind.
        classes: Class names by id, or their number; None: the lines of ``classes.txt`` in the
            folder.
        timeout_s: Maximum seconds that a command or a socket may take for its next byte.
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
        self._opened = OpenFiles(_Found(self.root, self._marks))

    def read(self, shard: str, start: int) -> Generator[TarItem | BadRecord]:
        """Read the samples of an archive; yield a bad record where damage ends it.

        Reads only the headers of a plain file. Reads other streams whole and drops unwanted
        content. Continues through concatenated archives.

        Raises:
            StreamError: The stream broke off, stalled, or its command failed.
        """
        with closing(self._stream(shard)) as stream:
            begin = stream.offset
            try:
                for key, members in iter_samples(self._members(stream)):
                    found = {name: each for name, contents in members.items() for each in contents}
                    yield TarItem(key.decode("utf-8", "backslashreplace"), found, stream.name)
                    begin = stream.offset
            except RecordError as error:
                cause = f"between byte {begin:,} and {stream.offset:,}: {error}"
                cause += "; the rest of this shard is lost"
                yield BadRecord(-1, stream.name, cause, ends_shard=True)

    def _members(self, stream: ByteStream) -> Iterator[tuple[bytes, bytes, list[Content]]]:
        """Yield name and owner of each member, and a list that receives its wanted content.

        A sample is complete when the next header is read, so the caller's next step reads the
        content of a member.
        """
        try:
            for member in iter_members(partial(_read_at, stream)):
                contents: list[Content] = []
                yield member.name, member.owner, contents
                parts = split_name(member.name)
                if parts is None or not self._fields.takes(extension_text(parts[1])):
                    continue
                value = None
                if stream.size is None and member.size_bytes <= self.max_record_bytes:
                    value = _read_at(stream, member.offset, member.size_bytes)
                    if (missing := member.size_bytes - len(value)) > 0:
                        _refuse_end(stream, missing)
                contents.append(Content(value, member.offset, member.size_bytes, member.crc32))
        except CutShort as error:
            _refuse_end(stream, error.missing_bytes)

    def load(self, item: TarItem) -> Record | BadRecord:
        """Make the record of a sample, or a bad record if it is damaged."""
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


def _read_at(stream: ByteStream, offset: int, size_bytes: int) -> bytes:
    """Read up to `size_bytes` at an offset ahead."""
    gap = offset - stream.offset
    if (found := stream.skip(gap)) < gap:
        _refuse_end(stream, gap - found)
    return stream.read(size_bytes)


def _refuse_end(stream: ByteStream, missing: int) -> NoReturn:
    """Raise because an archive is cut off: by a failed connection or a damaged file."""
    if stream.may_break_off:
        raise StreamError(
            f"{stream.name}: ended after {stream.offset:,} bytes, at least {missing:,} bytes too "
            f"early: it broke off"
        )
    raise RecordError(f"the archive ends at least {missing:,} bytes too early; copy it again")
