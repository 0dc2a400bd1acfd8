"""Stream tar archives of samples from files, commands, sockets or standard input."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import BadRecord, Record, RecordError
from penstock.datasets.files.access import OpenFiles, RangeFile
from penstock.datasets.files.byte_streams import ByteStream, StreamError
from penstock.datasets.storages.webdataset.headers import CutShort, Member, iter_members
from penstock.datasets.storages.webdataset.layout import TAR_ENDINGS, SampleFields, iter_samples
from penstock.datasets.streams.byte_source import ByteSource


class TarItem(NamedTuple):
    """A sample of an archive: its key, and its members by extension."""

    key: str
    members: dict[str, Member]
    archive: str


@register("source", "webdataset")
class WebDatasetSource(ByteSource):
    """Tar archives of samples, each read from start to end.

    Adjacent members with one key are a sample, as in the webdataset library. `read` reads only
    the headers of plain files; workers read the content of their samples.

    Args:
        path: A ``.tar``, ``.tar.gz`` or ``.tar.zst`` file, a folder of them, a pattern with ``*``
            or ``{000..099}``; ``pipe:command arguments`` for each archive, run without a shell;
            ``tcp://host:port``; or ``-``, the standard input.
        fields: Extensions by field, such as ``{image: "jpg;png", label: cls}``; None: each
            extension gives the usual field of its kind.
        classes: Class names by id, or their number; None: the lines of ``classes.txt`` in the
            folder.
        timeout_s: Maximum seconds that a command or a socket may take for its next byte.
    """

    name = "webdataset"
    endings = TAR_ENDINGS

    def __init__(
        self,
        path: str,
        *,
        fields: Mapping[str, str] | None = None,
        classes: list[str] | Annotated[int, Ge(1)] | None = None,
        timeout_s: Annotated[float, Gt(0)] = 120,
    ) -> None:
        super().__init__(path, classes=classes, timeout_s=timeout_s)
        self._fields = SampleFields(fields, setting="dataset.source.fields")
        self._opened = OpenFiles(self)

    def open(self, name: str) -> RangeFile:
        """Open a plain file for `load`."""
        return RangeFile(name, root=self.root, mark=self.marks.get(name))

    def read(self, shard: str, start: int) -> Generator[TarItem | BadRecord]:
        with closing(self.stream(shard)) as stream:
            begin = stream.offset
            try:
                for key, members in iter_samples(self._members(stream)):
                    found = {e: m for e, m in members.items() if self._fields.name(e) is not None}
                    yield TarItem(key.decode("utf-8", "backslashreplace"), found, stream.name)
                    begin = stream.offset
            except RecordError as error:
                if isinstance(error, CutShort) and stream.may_break_off:
                    raise StreamError(
                        f"{stream.name}: broke off after {stream.offset:,} bytes, too early"
                    ) from error
                cause = f"between byte {begin:,} and {stream.offset:,}: {error}"
                cause += "; the rest of this shard is lost"
                yield BadRecord(-1, stream.name, cause, ends_shard=True)

    def _members(self, stream: ByteStream) -> Iterator[Member]:
        """Yield the members; a plain file is read later, by range."""
        for member in iter_members(partial(_read_at, stream)):
            if stream.size is None and member.size_bytes <= self.max_record_bytes:
                content = _read_at(stream, member.offset, member.size_bytes)
                if len(content) < member.size_bytes:
                    raise CutShort("within a member")
                member = member._replace(content=content)
            yield member

    def load(self, item: TarItem) -> Record | BadRecord:
        def read(at: int, size_bytes: int) -> bytes:
            return self._opened[item.archive].read(at, size_bytes)

        try:
            members = {e: m.read(read, self.max_record_bytes) for e, m in item.members.items()}
            fields = self._fields.read(members)
            if "label" in fields:
                fields["label"] = self.labels.id_of(fields["label"])
        except ValueError as error:
            return BadRecord(-1, item.key, str(error))
        return Record(-1, item.key, fields)


def _read_at(stream: ByteStream, offset: int, size_bytes: int) -> bytes:
    """Read up to `size_bytes` at an offset ahead."""
    gap = offset - stream.offset
    if stream.skip(gap) < gap:
        raise CutShort("within a member")
    return stream.read(size_bytes)
