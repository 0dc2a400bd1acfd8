"""Read the headers of tar archives with `tarfile`, and raise for damage.

Iterating a `tarfile.TarFile` would stop silently at a damaged header.
"""

from __future__ import annotations

import os
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

from penstock.core.sample import RecordError, too_large

_MOST_HEADER_BYTES = 1 << 20
_CRC32 = re.compile("crc32:([0-9a-f]{8})")
# Name, size, checksum, type, owner, group, and the start of the name's prefix.
_FILE = struct.Struct("100s24x12s12x8sc108x32s32s16xc166x")
# A damaged extension of a header raises any of these, and a long chain of headers the last.
_DAMAGE = (tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError)


class CutShort(RecordError):
    """An archive ends too early."""

    def __init__(self, where: str) -> None:
        super().__init__(f"it ends {where}; copy it again")


class Member(NamedTuple):
    """A file in an archive; `start` is the offset of its first header, `offset` of its content.

    `crc32` is the checksum of the content, if the archive has one as the name of the group.
    `content` is set for a stream, which cannot be read again.
    """

    name: bytes
    owner: bytes
    start: int
    offset: int
    size_bytes: int
    crc32: int | None
    content: bytes | None = None

    def read(self, read: Callable[[int, int], Any], max_bytes: int) -> Any:
        """Read the content; RecordError if it is too large or its checksum is wrong."""
        if self.size_bytes > max_bytes:
            raise RecordError(f"{shown(self.name)} {too_large(self.size_bytes, max_bytes)}")
        content = read(self.offset, self.size_bytes) if self.content is None else self.content
        if self.crc32 is not None and zlib.crc32(content) != self.crc32:
            raise RecordError(
                f"the bytes of {shown(self.name)} differ from those packed (checksum)"
            )
        return content


class _Info(tarfile.TarInfo):
    """A header; parses headers of plain files in a third of the library's time."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        """Parse a block: without times, modes and ids if it is the header of a plain file."""
        if len(buf) == tarfile.BLOCKSIZE:
            name, size, checksum, kind, owner, group, prefix = _FILE.unpack(buf)
            # Zeros do not count, and most bytes of a header are zeros.
            expected = sum(buf.replace(b"\0", b"")) - sum(checksum) + 8 * ord(" ")
            if kind == b"0" and prefix == b"\0" and checksum == b"%06o\0 " % expected:
                info = cls(_text(name, encoding, errors))
                if size.rstrip(b"\0").isdigit():
                    info.size = int(size.rstrip(b"\0"), 8)
                    info.uname = _text(owner, encoding, errors)
                    info.gname = _text(group, encoding, errors)
                    return info
        return super().frombuf(buf, encoding, errors)


def _text(field: bytes, encoding: str, errors: str) -> str:
    return field.partition(b"\0")[0].decode(encoding, errors)


class _Headers:
    """The headers of an archive: what `tarfile.TarInfo` needs of a `tarfile.TarFile`."""

    encoding, errors = "utf-8", "surrogateescape"

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self.at = self.offset = 0  # of the next header
        self.pax_headers: dict[str, str] = {}
        self.fileobj, self.is_cut = self, False

    def tell(self) -> int:
        return self.at

    def read(self, size_bytes: int) -> bytes:
        if not 0 <= size_bytes <= _MOST_HEADER_BYTES:
            raise RecordError(f"an extended header of {size_bytes:,} bytes; copy it again")
        found = self._read(self.at, size_bytes)
        self.at += len(found)
        self.is_cut |= len(found) < size_bytes
        return found


def iter_members(
    read: Callable[[int, int], bytes], *, end: int | None = None, has_end: bool = True
) -> Iterator[Member]:
    """Yield the files of an archive, in order; read concatenated archives to the end.

    `read` returns up to so many bytes at an offset. `end` is the size of the archive, if known.
    `has_end` requires the end mark. RecordError: a header is damaged, or of another kind of file.
    """
    headers = _Headers(read)
    ended = False
    while end is None or headers.offset < end:
        start = headers.at = headers.offset
        try:
            member = _Info.fromtarfile(headers)  # type: ignore[arg-type]
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]
            break
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            ended, headers.offset = True, start + tarfile.BLOCKSIZE
            continue
        except RecordError:
            raise
        except _DAMAGE as error:
            if headers.is_cut:
                raise CutShort("within a header") from error
            raise RecordError(f"a header is damaged ({error}); copy it again") from error
        ended = False
        if member.size < 0 or headers.offset <= start:
            raise RecordError(f"a header has the size {member.size}; copy it again")
        if member.isdir():
            continue
        name, offset = os.fsencode(member.name), member.offset_data
        if not member.isfile() or member.issparse():
            raise RecordError(
                f"the member {shown(name)} is a link, a device or a sparse file; write the archive "
                f"with tar's --dereference --hard-dereference, without --sparse"
            )
        if end is not None and offset + member.size > end:
            raise CutShort(f"within the member {shown(name)}")
        found = _CRC32.fullmatch(member.gname)
        crc32 = int(found[1], 16) if found else None
        yield Member(name, os.fsencode(member.uname), start, offset, member.size, crc32)
    if has_end and not ended:
        raise CutShort("without an end mark (if it is whole, type truncate -s +1024 FILE)")


def shown(name: bytes) -> str:
    """Quote a name for a message."""
    return repr(name.decode("utf-8", "backslashreplace"))
