"""Find the members of ZIP archives by the central directory, and read them by range.

Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header) and 4.3.12 (central directory).
"""

from __future__ import annotations

import io
import itertools
import struct
import zipfile
import zlib
from typing import NamedTuple

from penstock.core.sample import RecordError
from penstock.core.user_errors import is_trouble
from penstock.datasets.files.access import RangeFile, RangeStream

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_LOCAL_HEADER = struct.Struct("<4s22x2H")
_LOCAL_MARK = b"PK\x03\x04"
_MOST_EXTRA_BYTES = 1 << 16


class Member(NamedTuple):
    """A file in an archive.

    `offset` is the start of its local header, and `span_bytes` reaches to the next member. Its
    content has `stored_bytes` in the archive, and `size_bytes` decompressed.
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

    RecordError for a damaged archive, encryption, or a compression other than deflate.
    """
    try:
        infos = zipfile.ZipFile(view).infolist()
        for info in infos[:1]:  # a wrong directory offset shifts all members
            view.seek(info.header_offset)
            if view.read(len(_LOCAL_MARK)) != _LOCAL_MARK:
                raise RecordError("the member is not where the directory says")
    except Exception as error:  # damage raises many types
        if is_trouble(error):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        raise RecordError(f"damaged or no ZIP archive ({said}); copy it again") from error
    end = view.seek(0, io.SEEK_END)
    starts = sorted({info.header_offset for info in infos})
    next_start = dict(itertools.pairwise([*starts, end]))
    members = []
    for info in infos:
        if info.is_dir():
            continue
        name, size_bytes, method = info.filename, info.file_size, info.compress_type
        if info.flag_bits & 1 or method not in (STORED, DEFLATED):
            raise RecordError(
                f"{name!r} is encrypted, or compressed by method {method}; expected 0 (stored) or "
                f"8 (deflated), so write the archive anew"
            )
        offset, stored_bytes = info.header_offset, info.compress_size
        if not 0 <= offset <= end - stored_bytes:
            raise RecordError(f"damaged: {name!r} lies outside the file; copy it again")
        # A damaged directory entry must not truncate its neighbour.
        name_bytes = len(info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"))
        least = _LOCAL_HEADER.size + name_bytes + stored_bytes
        span_bytes = max(min(next_start[offset] - offset, least + _MOST_EXTRA_BYTES), least)
        place = offset, span_bytes, stored_bytes
        members.append(Member(name, *place, size_bytes, info.CRC, method))
    return members


def read_member(file: RangeFile, member: Member) -> bytes:
    """Read the content of a member; RecordError if it is damaged."""
    data = memoryview(file.read(member.offset, member.span_bytes))
    return member_content(data, member.stored_bytes, member.size_bytes, member.crc32, member.method)


def read_head(file: RangeFile, member: Member, most_bytes: int) -> tuple[bytes, int]:
    """Read the first bytes of a member's content; also return where it is stored in the file."""
    data = memoryview(file.read(member.offset, min(member.span_bytes, most_bytes)))
    start = _content_start(data)
    head = data[start : start + member.stored_bytes]
    content = _inflate(head, most_bytes) if member.method == DEFLATED else bytes(head)
    return content, member.offset + start


def member_content(
    data: memoryview, stored_bytes: int, size_bytes: int, crc32: int, method: int
) -> bytes:
    """Read the content of a member from its span, uint8; RecordError if it differs."""
    start = _content_start(data)
    stored = data[start : start + stored_bytes]
    # One byte more than the expected length shows that it is longer.
    content = _inflate(stored, size_bytes + 1) if method == DEFLATED else bytes(stored)
    if len(content) != size_bytes:
        raise RecordError(f"it has {len(content):,} bytes and should have {size_bytes:,}")
    if zlib.crc32(content) != crc32:
        raise RecordError("its bytes are not those that were packed (checksum)")
    return content


def _content_start(data: memoryview) -> int:
    if len(data) < _LOCAL_HEADER.size or data[:4] != _LOCAL_MARK:
        raise RecordError("the member is not where the directory says")
    _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(data)
    return _LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


def _inflate(stored: memoryview, most_bytes: int) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, most_bytes)
    except zlib.error as error:
        raise RecordError(f"cannot be decompressed ({error})") from error
