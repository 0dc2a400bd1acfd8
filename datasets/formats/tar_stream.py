"""Samples of a tar archive that is read from its start to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets.formats.byte_streams import ByteStream, DamagedBytes, StreamError
from datasets.formats.tar_headers import BLOCK_BYTES, BadTar, TarHeaders, stored_bytes
from datasets.formats.tar_keys import unpack_key
from datasets.formats.tar_samples import extension_text, iter_samples, split_name
from datasets.sample import BadRecord


class Place(NamedTuple):
    """Where a member's content lies in its archive."""

    offset: int
    size_bytes: int


class Content(NamedTuple):
    """A member's content, and its checksum where the archive has one."""

    value: bytes | Place
    crc32: int | None


@dataclass(frozen=True, slots=True)
class TarItem:
    """One sample of an archive, not decoded.

    Attributes:
        key: The key, as text.
        members: Content by extension.
        archive: The file that places are in.
    """

    key: str
    members: dict[str, Content]
    archive: str


class _Member:
    """A member whose content has not been read yet, and the name of its owner."""

    __slots__ = ("content", "owner")

    def __init__(self, owner: bytes) -> None:
        self.owner = owner
        self.content: Content | None = None


class TarShard:
    """The samples of an archive, in order.

    From a plain file only the headers are read; what else there is, a command's output for
    example, is read as it comes, and dropped where it is passed over. What comes behind the end
    mark is read too: archives that were put one behind the other are all there.

    Args:
        stream: The archive's bytes; closed with this.
        takes: Which extensions are wanted; the content of others is passed over.
    """

    def __init__(self, stream: ByteStream, *, takes: Any) -> None:
        self._stream = stream
        self._takes = takes
        self._passing = False
        self._samples = iter_samples(self._members())
        self._ended = False

    def __iter__(self) -> Iterator[TarItem | BadRecord]:
        return self

    def __next__(self) -> TarItem | BadRecord:
        """The next sample; a bad record where damage ends the archive.

        Raises:
            StreamError: It broke off, stalled, or its command failed.
        """
        if self._ended:
            raise StopIteration
        start = self._stream.offset
        try:
            stem, members = next(self._samples)
        except StopIteration:
            self._ended = True
            raise
        except (BadTar, DamagedBytes) as error:
            self._ended = True
            name = self._stream.name
            cause = f"between byte {start:,} and {self._stream.offset:,}: {error}"
            cause += "; what comes behind it in this shard is lost"
            return BadRecord(-1, name, cause, ends_shard=True)
        found = {name: member.content for name, member in members.items() if member.content}
        key = unpack_key(stem, next(iter(members.values())).owner)
        return TarItem(key.decode("utf-8", "backslashreplace"), found, self._stream.name)

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

    def _members(self) -> Iterator[tuple[bytes, _Member]]:
        """Name of each member; its content is there once the next one is asked for.

        A sample is complete when the header behind it was read. So what is done with the content
        of that next member is settled only then: whether it is read or passed over.
        """
        stream, headers, ended = self._stream, TarHeaders(), False
        while block := stream.read(BLOCK_BYTES):
            header = self._parsed(headers, block)
            ended = header.kind == "end"
            if header.kind == "extension":
                headers.extend(self._read(header.size_bytes))
            elif header.kind == "file":
                member = _Member(header.owner)
                yield header.name, member
                member.content = self._content(header.name, header.size_bytes, header.crc32)
        headers.finish()
        if not ended:
            self._refuse_end(2 * BLOCK_BYTES)

    def _parsed(self, headers: TarHeaders, block: bytes) -> Any:
        if len(block) < BLOCK_BYTES:
            self._refuse_end(BLOCK_BYTES - len(block))
        return headers.parse(block)

    def _content(self, name: bytes, size_bytes: int, crc32: int | None) -> Content | None:
        """The content of the member whose header was read last; None if it is not wanted."""
        parts = split_name(name)
        wanted = not self._passing and parts is not None and self._takes(extension_text(parts[1]))
        stream = self._stream
        if wanted and stream.size is None:
            content = Content(self._read(size_bytes), crc32)
            return content
        place = Place(stream.offset, size_bytes)
        self._skip(stored_bytes(size_bytes))
        return Content(place, crc32) if wanted else None

    def _read(self, size_bytes: int) -> bytes:
        """Content with its padding left out."""
        content = self._stream.read(size_bytes)
        if len(content) < size_bytes:
            self._refuse_end(size_bytes - len(content))
        self._skip(stored_bytes(size_bytes) - size_bytes)
        return content

    def _skip(self, size_bytes: int) -> None:
        """Pass over bytes that have to be there."""
        found = self._stream.skip(size_bytes)
        if found < size_bytes:
            self._refuse_end(size_bytes - found)

    def _refuse_end(self, missing: int) -> None:
        """Say that the archive was cut off; what a command or socket sends may not even be."""
        if self._stream.may_break_off:
            raise StreamError(
                f"{self._stream.name}: ended after {self._stream.offset:,} bytes, "
                f"at least {missing:,} bytes too early: it broke off"
            )
        raise BadTar(f"the archive ends at least {missing:,} bytes too early; copy it again")
