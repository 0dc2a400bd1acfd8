"""Find the members of ZIP archives by the central directory, and read them from their places.

Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header) and 4.3.12 (central directory).
"""

from __future__ import annotations

import errno
import io
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.core.sample import inflated_too_large
from penstock.datasets.files.access import EndOfFile, FileView, SharedFile

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_MARK = b"PK\x03\x04"
# Room for what writers commonly add behind the name, so that one read suffices.
_EXTRA_BYTES = 64
MOST_EXPANDED = 1032
"""What a byte of deflate becomes at most (RFC 1951: length 258 in two bits)."""


class DamagedMember(Exception):
    """A member that is there but cannot be read; the message is the cause."""


@dataclass(frozen=True, slots=True)
class Member:
    """Place of a member, and what it must be.

    Attributes:
        name: Its name as text.
        offset: Its local header.
        header_bytes: Length of that header without extra fields.
        stored_bytes: Its length in the archive.
        size_bytes: Its own length.
        crc32: Checksum of its content.
        method: `STORED` or `DEFLATED`.
    """

    name: str
    offset: int
    header_bytes: int
    stored_bytes: int
    size_bytes: int
    crc32: int
    method: int

    @property
    def place(self) -> dict[str, int]:
        """Arguments of `read_member`."""
        return {name: getattr(self, name) for name in PLACE}


# Arguments of `read_member`, and their types in an index.
PLACE: dict[str, Any] = {
    "offset": np.int64,
    "header_bytes": np.int32,
    "stored_bytes": np.int64,
    "size_bytes": np.int64,
    "crc32": np.uint32,
    "method": np.uint8,
}
# Of a record without an image.
NO_MEMBER = Member("", 0, 0, 0, 0, 0, 255)


def list_members(view: FileView, *, where: str) -> list[Member]:
    """List the files in an archive, in the order of its directory; folders are left out.

    Raises:
        ValueError: It is damaged or no archive, or a member has a name that leads elsewhere, is a
            link, is encrypted, or is compressed by a method other than deflate.
    """
    try:
        infos = zipfile.ZipFile(view).infolist()
        for info in infos[:1]:
            # A wrong offset of the directory moves all members.
            view.seek(info.header_offset)
            if view.read(len(_LOCAL_MARK)) != _LOCAL_MARK:
                raise ValueError("there is no member where the directory says")
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, EndOfFile,
            IndexError, OverflowError, OSError) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{where}: damaged or no ZIP archive ({said}); copy it again, or take it away"
        ) from error
    size = view.seek(0, io.SEEK_END)
    members = []
    for info in infos:
        _refuse_hostile(info, where=where)
        if info.is_dir():
            continue
        if info.flag_bits & 1:
            raise ValueError(f"{where}: {info.filename!r} is encrypted; write it without")
        if info.compress_type not in (STORED, DEFLATED):
            raise ValueError(
                f"{where}: {info.filename!r} is compressed by method {info.compress_type}, "
                f"expected 0 (stored) or 8 (deflated); write it so"
            )
        member = Member(
            name=info.filename,
            offset=info.header_offset,
            header_bytes=_LOCAL_HEADER.size + len(info.orig_filename.encode()),
            stored_bytes=info.compress_size,
            size_bytes=info.file_size,
            crc32=info.CRC,
            method=info.compress_type,
        )
        if not 0 <= member.offset <= size - member.stored_bytes:
            raise ValueError(
                f"{where}: damaged: {member.name!r} lies outside the file; copy it again"
            )
        members.append(member)
    return members


def _refuse_hostile(info: zipfile.ZipInfo, *, where: str) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    odd = any(c in name for c in "\\\0") or (len(name) > 1 and name[1] == ":")
    if odd or any(part in ("", ".", "..") for part in parts):
        raise ValueError(
            f"{where}: the member {name!r} has a name that leads elsewhere; do not trust this "
            f"archive, or write it anew with names below one folder"
        )
    if stat.S_ISLNK(info.external_attr >> 16):
        raise ValueError(f"{where}: the member {name!r} is a link; write the archive without links")


def read_member(
    file: SharedFile,
    *,
    offset: int,
    header_bytes: int,
    stored_bytes: int,
    size_bytes: int,
    crc32: int | None,
    method: int,
    max_bytes: int | None = None,
) -> bytes:
    """Read the content of a member, in one read where its header is as long as usual.

    Args:
        file: The archive.
        offset: See `Member`; so are the others.
        header_bytes: Length of the local header without extra fields.
        stored_bytes: Length in the archive.
        size_bytes: Length of the content.
        crc32: Its checksum, or None: it is not compared.
        method: How it is compressed.
        max_bytes: What a record may take; what is compressed may not become absurdly more.

    Raises:
        DamagedMember: It is not what the directory says, or is too large.
        EndOfFile: It lies behind the end of the file.
    """
    if size_bytes > stored_bytes * (MOST_EXPANDED if method == DEFLATED else 1):
        raise DamagedMember(f"{stored_bytes:,} bytes cannot hold {size_bytes:,}")
    if max_bytes and (fault := inflated_too_large(size_bytes, stored_bytes, max_bytes)):
        raise DamagedMember(fault)
    data = file.read_upto(offset, header_bytes + _EXTRA_BYTES + stored_bytes)
    if len(data) < _LOCAL_HEADER.size or not data.startswith(_LOCAL_MARK):
        raise DamagedMember("there is no member where the directory says")
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(data)[-2:]
    start = _LOCAL_HEADER.size + name_bytes + extra_bytes
    if start + stored_bytes > len(data):
        data, start = file.read(offset + start, stored_bytes), 0
    stored = memoryview(data)[start : start + stored_bytes]
    content = _inflate(stored, size_bytes) if method == DEFLATED else bytes(stored)
    if len(content) != size_bytes:
        raise DamagedMember(f"it has {len(content):,} bytes and should have {size_bytes:,}")
    if crc32 is not None and zlib.crc32(content) != crc32:
        raise DamagedMember("its bytes are not those that were packed (checksum)")
    return content


def _inflate(stored: memoryview, size_bytes: int) -> bytes:
    """Decompress, and never to more than one byte beyond the length that it should have."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        return inflater.decompress(stored, size_bytes + 1)
    except zlib.error as error:
        raise DamagedMember(f"cannot be decompressed ({error})") from error
