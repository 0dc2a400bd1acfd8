"""Find the members of ZIP archives by the central directory, and read them by range.

Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header) and 4.3.12 (central directory).
"""

from __future__ import annotations

import errno
import io
import itertools
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass

from penstock.core.sample import RecordError
from penstock.datasets.files.access import RangeFile, RangeStream

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_LOCAL_MARK = b"PK\x03\x04"
_MOST_EXTRA_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive.

    `offset` is the start of its local header, and `span_bytes` reaches from there to the next
    member. Its content has `stored_bytes` in the archive, and `size_bytes` decompressed.
    """

    name: str
    offset: int
    span_bytes: int
    stored_bytes: int
    size_bytes: int
    crc32: int
    method: int


def list_members(view: RangeStream) -> list[Member]:
    """List the files in an archive, in directory order, without folders.

    RecordError for a damaged archive, and for a member with an unsafe name, a link, encryption, or
    a compression other than deflate.
    """
    try:
        infos = zipfile.ZipFile(view).infolist()
        for info in infos[:1]:
            # A wrong directory offset shifts all members.
            view.seek(info.header_offset)
            if view.read(len(_LOCAL_MARK)) != _LOCAL_MARK:
                raise RecordError("the member is not where the directory says")
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError,
            IndexError, OverflowError, OSError) as error:  # fmt: skip
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise RecordError(
            f"damaged or no ZIP archive ({said}); copy it again, or take it away"
        ) from error
    end = view.seek(0, io.SEEK_END)
    starts = sorted({info.header_offset for info in infos})
    next_start = dict(itertools.pairwise([*starts, end]))
    members = []
    for info in infos:
        _refuse_hostile(info)
        if info.is_dir():
            continue
        if info.flag_bits & 1:
            raise RecordError(f"{info.filename!r} is encrypted; write it without")
        if info.compress_type not in (STORED, DEFLATED):
            raise RecordError(
                f"{info.filename!r} is compressed by method {info.compress_type}, expected 0 "
                f"(stored) or 8 (deflated); write it so"
            )
        offset, stored_bytes = info.header_offset, info.compress_size
        if not 0 <= offset <= end - stored_bytes:
            raise RecordError(f"damaged: {info.filename!r} lies outside the file; copy it again")
        header_bytes = _LOCAL_HEADER.size + len(info.orig_filename.encode())
        # A damaged directory entry must not truncate its neighbour.
        least = min(header_bytes + stored_bytes, end - offset)
        span_bytes = max(min(next_start[offset] - offset, least + _MOST_EXTRA_BYTES), least)
        members.append(Member(info.filename, offset, span_bytes, stored_bytes, info.file_size,
                              info.CRC, info.compress_type))  # fmt: skip
    return members


def _refuse_hostile(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    parts = name.removesuffix("/").split("/")
    odd = any(c in name for c in "\\\0") or (len(name) > 1 and name[1] == ":")
    if odd or any(part in ("", ".", "..") for part in parts):
        raise RecordError(
            f"the member {name!r} has a name that leads elsewhere; do not trust this archive, or "
            f"write it anew with names below one folder"
        )
    if stat.S_ISLNK(info.external_attr >> 16):
        raise RecordError(f"the member {name!r} is a link; write the archive without links")


def read_member(file: RangeFile, member: Member) -> bytes:
    """Read the content of a member; RecordError if it is damaged."""
    data = memoryview(file.read(member.offset, member.span_bytes))
    return member_content(data, member.stored_bytes, member.size_bytes, member.crc32, member.method)


def member_content(
    data: memoryview, stored_bytes: int, size_bytes: int, crc32: int | None, method: int
) -> bytes:
    """Read the content of a member from its span, uint8; RecordError if it differs."""
    if len(data) < _LOCAL_HEADER.size or data[:4] != _LOCAL_MARK:
        raise RecordError("the member is not where the directory says")
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(data)[-2:]
    start = _LOCAL_HEADER.size + name_bytes + extra_bytes
    stored = data[start : start + stored_bytes]
    content = _inflate(stored, size_bytes) if method == DEFLATED else bytes(stored)
    if len(content) != size_bytes:
        raise RecordError(f"it has {len(content):,} bytes and should have {size_bytes:,}")
    if crc32 is not None and zlib.crc32(content) != crc32:
        raise RecordError("its bytes are not those that were packed (checksum)")
    return content


def local_content(data: memoryview, size_bytes: int) -> bytes:
    """Read the content of a member whose local header has its sizes and checksum."""
    if len(data) < _LOCAL_HEADER.size:
        raise RecordError("the member is not where the directory says")
    method, _, _, crc32, stored_bytes, _, _, _ = _LOCAL_HEADER.unpack_from(data)[3:]
    return member_content(data, stored_bytes, size_bytes, crc32, method)


def _inflate(stored: memoryview, size_bytes: int) -> bytes:
    """Decompress at most one byte more than the expected length."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        return inflater.decompress(stored, size_bytes + 1)
    except zlib.error as error:
        raise RecordError(f"cannot be decompressed ({error})") from error
