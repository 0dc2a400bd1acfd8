"""Headers of tar archives: blocks of 512 bytes, and the extensions that stand before some of them.

Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; the GNU tar
manual, "Basic Tar Format", for long names and large numbers.
"""

from __future__ import annotations

import struct
import zlib
from typing import Literal, NamedTuple

BLOCK_BYTES = 512
MOST_EXTENSION_BYTES = 1 << 20

Kind = Literal["file", "folder", "extension", "end"]

_ZEROS = bytes(BLOCK_BYTES)
# Name, size, checksum, type, magic, owner, group, prefix.
_HEADER = struct.Struct("<100s24x12s12x8sc100x6s2x32s32s16x155s12x")
_CHECKSUM = slice(148, 156)
_BLANK_SUM = 8 * ord(" ")
_ADLER = 65521
CRC32_MARK = b"crc32:"
_REFUSED = {
    b"1": "a hard link; write the archive with tar's --hard-dereference",
    b"2": "a symbolic link; write the archive with tar's --dereference",
    b"3": "a device; write the archive without it",
    b"4": "a device; write the archive without it",
    b"6": "a pipe; write the archive without it",
    b"S": "a sparse file; write the archive without --sparse",
    b"M": "continued from another volume; write archives that are whole",
}


class BadTar(ValueError):
    """An archive that is damaged, or holds what is not read; the message is one line."""


class Header(NamedTuple):
    """What a header says of what follows it.

    Attributes:
        kind: ``file``, ``folder``, ``extension`` (its content is for `TarHeaders.extend`), or
            ``end``: a block of zeros, after which nothing comes.
        name: The path of a file or folder, as its bytes.
        size_bytes: Length of the content, which follows the header.
        crc32: Checksum of the content, where the archive has one, in the name of the group.
        owner: The name of the owner.
    """

    kind: Kind
    name: bytes
    size_bytes: int
    crc32: int | None
    owner: bytes


_END = Header("end", b"", 0, None, b"")


def stored_bytes(size_bytes: int) -> int:
    """How much room content takes: whole blocks."""
    return (size_bytes + BLOCK_BYTES - 1) & -BLOCK_BYTES


class TarHeaders:
    """Reads the headers of one archive, one after the other.

    It keeps what an extension said until the header that this is about::

        header = headers.parse(block)
        if header.kind == "extension":
            headers.extend(content)        # header.size_bytes bytes, without padding
    """

    __slots__ = ("_extension", "_path", "_size")

    def __init__(self) -> None:
        self._extension = b""
        self._path: bytes | None = None
        self._size: int | None = None

    def parse(self, block: bytes) -> Header:
        """Read a header.

        Args:
            block: 512 bytes.

        Raises:
            BadTar: It is damaged, or that of a link, a device, a sparse file; or the name leads
                elsewhere, or no longer is one.
        """
        if len(block) != BLOCK_BYTES:
            raise BadTar("it ends within a header; copy it again")
        if not block[0] and block == _ZEROS:
            self.finish()
            return _END
        name, size, checksum, kind, magic, owner, group, prefix = _HEADER.unpack(block)
        _check(block, checksum)
        size_bytes = _number(size)
        assert not self._extension, "the content of an extension was not given to extend"
        if kind in b"xXgLK":
            self._extension = kind
            if size_bytes > MOST_EXTENSION_BYTES:
                raise BadTar(
                    f"an extended header of {size_bytes:,} bytes, expected at most "
                    f"{MOST_EXTENSION_BYTES:,}; copy it again, or write it without"
                )
            return Header("extension", b"", size_bytes, None, b"")
        name = name.partition(b"\0")[0]
        if prefix[0] and magic == b"ustar\0":
            name = b"%s/%s" % (prefix.partition(b"\0")[0], name)
        if self._path is not None:
            name, self._path = self._path, None
        if self._size is not None:
            size_bytes, self._size = self._size, None
        _check_name(name)
        if kind == b"5" or (kind in b"0\0" and name.endswith(b"/")):
            return Header("folder", name, 0, None, b"")
        if kind not in b"0\x007":
            what = _REFUSED.get(kind, f"of the unknown type {kind!r}; copy it again")
            raise BadTar(f"the member {shown(name)} is {what}")
        return Header("file", name, size_bytes, _crc32_of(group), owner.rstrip(b"\0"))

    def extend(self, content: bytes) -> None:
        """Take the content of an extension, as long as its header said.

        Raises:
            BadTar: It is damaged, or describes a sparse file.
        """
        kind, self._extension = self._extension, b""
        if kind == b"L":
            self._path = content.partition(b"\0")[0]
        elif kind in (b"x", b"X", b"g"):
            said = _pax_records(content)
            if any(key.startswith(b"GNU.sparse") for key in said):
                raise BadTar(f"a member is {_REFUSED[b'S']}")
            if kind == b"g":
                if b"path" in said or b"size" in said:
                    raise BadTar("one path or size is given for all members; copy it again")
                return
            self._path = said.get(b"path", self._path)
            if b"size" in said:
                self._size = _decimal(said[b"size"])

    def finish(self) -> None:
        """Say that no header follows.

        Raises:
            BadTar: An extension was read whose member is not there.
        """
        if self._path is not None or self._size is not None or self._extension:
            raise BadTar("it ends after an extended header, before its member; copy it again")


def shown(name: bytes) -> str:
    """A name for a message."""
    return repr(name.decode("utf-8", "backslashreplace"))


def _check(block: bytes, checksum: bytes) -> None:
    """Compare a header with its checksum: the sum of its bytes, those of the sum as blanks.

    Adler-32 holds the sum of the bytes and one (RFC 1950), modulo a prime, in its lower half: a
    twentieth of the time that `sum` takes.
    """
    try:
        stored = int(checksum.partition(b"\0")[0], 8)
    except ValueError:
        raise BadTar("there is no header where one should be; copy it again") from None
    found = (zlib.adler32(block) & 0xFFFF) - 1 - sum(checksum) + _BLANK_SUM
    if (stored - found) % _ADLER:
        # Some old programs add signed bytes.
        signed = sum(struct.unpack("512b", block)) - sum(struct.unpack("8b", checksum))
        if stored != signed + _BLANK_SUM:
            raise BadTar("a header is damaged (checksum); copy it again")


def _crc32_of(group: bytes) -> int | None:
    """The checksum in the name of a group: ``crc32:89abcdef``."""
    if not group.startswith(CRC32_MARK):
        return None
    digits = group.rstrip(b"\0")[len(CRC32_MARK) :]
    whole = len(digits) == 8 and not digits.strip(b"0123456789abcdef")
    return int(digits, 16) if whole else None


def _number(field: bytes) -> int:
    """A number of octal digits, or GNU's large ones to base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        number = int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise BadTar(f"a header has the size {shown(field)}, expected octal digits; copy it again")
    return number


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise BadTar(f"an extended header has the number {shown(text)}; copy it again")
    return int(text)


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """What a pax extended header says: records of "length key=value" and a line feed."""
    said: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + 20)
        length = _decimal(content[at:space]) if space > at else 0
        record = content[space + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if not equals or not record.endswith(b"\n") or at + length > len(content):
            raise BadTar("an extended header is damaged; copy it again")
        said[key] = value
        at += length
    return said


def _check_name(name: bytes) -> None:
    if not name:
        raise BadTar("a member has no name; copy it again")
    leads_out = name[0] == ord("/") or (b".." in name and b".." in name.split(b"/"))
    if leads_out or b"\0" in name:
        raise BadTar(
            f"the member {shown(name)} has a name that leads elsewhere; do not trust this "
            f"archive, or write it anew with names below one folder"
        )
