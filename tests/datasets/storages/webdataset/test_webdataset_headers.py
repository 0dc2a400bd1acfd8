"""Headers of tar archives: what the standard library and others write, and damage anywhere."""

import io
import os
import struct
import tarfile

import numpy as np
import pytest

from penstock.core.sample import RecordError
from penstock.datasets.storages.webdataset.headers import (
    iter_members,
    stored_bytes,
    write_header,
)

LONG = "deep/" * 30 + "x" * 120 + ".jpg"
NAMES = ["a.jpg", "dir/b.cls", "ünï 日本.txt", LONG, "d" * 95 + ".json", "p" * 90 + "/" + "q" * 90]


def archive(members, kind=tarfile.GNU_FORMAT, **options):
    """The bytes of an archive that the standard library writes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for option, value in options.items():
                setattr(info, option, value)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def members_of(data, **options):
    """Every file and its content; fewer bytes than there should be are an error."""
    data = bytes(data)
    for member in iter_members(lambda at, size: data[at : at + size], **options):
        content = data[member.offset : member.offset + member.size_bytes]
        if len(content) < member.size_bytes:
            raise RecordError("too short; copy it again")
        yield member, content


def first_of(data):
    """The first file, whose content may not be there."""
    data = bytes(data)
    return next(iter_members(lambda at, size: data[at : at + size]))


def found(data):
    return [(member.name.decode(), content) for member, content in members_of(data, has_end=False)]


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_names_and_sizes_in_every_format(kind):
    rng = np.random.default_rng(0)
    names = [n for n in NAMES if kind != tarfile.USTAR_FORMAT or n != LONG]
    members = [
        (name, rng.bytes(size))
        for name, size in zip(names, (0, 1, 511, 512, 513, 2000), strict=False)
    ]
    options = {"pax_headers": {"comment": "ünï\nmore"}} if kind == tarfile.PAX_FORMAT else {}
    data = archive(members, kind, **options)
    assert found(data) == members
    assert found(memoryview(data)[: data.rindex(members[-1][1][-1:]) + 1]) == members


def test_folders_are_no_files_and_old_headers_are_read():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    block = bytearray(archive([("dir/a.txt", b"1")])[:512])
    block[156] = 0  # the type of a file before POSIX
    block[257:265] = bytes(8)
    sealed(block)
    old_folder = bytearray(archive([("old/", b"")], type=tarfile.AREGTYPE)[:512])
    data = file.getvalue()[:512] + bytes(old_folder) + bytes(block) + b"1".ljust(512, b"\0")
    assert found(data) == [("dir/a.txt", b"1")]


def sealed(block, *, signed=False):
    block[148:156] = b" " * 8
    total = sum(struct.unpack("512b" if signed else "512B", block))
    block[148:156] = b"%06o\0 " % (total & 0o777777)
    return block


def test_large_numbers_and_sums_of_signed_bytes():
    block = bytearray(archive([("ü.jpg", b"")])[:512])
    block[124:136] = b"\x80" + (1 << 40).to_bytes(11, "big")
    assert first_of(sealed(block)).size_bytes == 1 << 40
    block[124:136] = b"00000000007\0"
    assert first_of(sealed(block, signed=True)).size_bytes == 7
    block[124:136] = b"-0000000007\0"
    with pytest.raises(RecordError, match="has the size -7"):
        first_of(sealed(block))


def test_an_extension_may_give_the_size():
    [(header, content)] = members_of(
        archive([("a.jpg", b"12345")], tarfile.PAX_FORMAT, pax_headers={"size": "5"})
    )
    assert (header.size_bytes, bytes(content)) == (5, b"12345")


def test_headers_that_we_write_are_read_by_us_and_by_the_library():
    names = [b"a.jpg", LONG.encode(), b"x" * 100, b"x" * 101, "ünï".encode(), b"\xff.jpg"]
    data = b""
    for n, name in enumerate(names):
        content = bytes(n * 200)
        data += write_header(name, len(content), owner=b"key:%d" % n, crc32=0x8000_ABCD)
        data += content.ljust(stored_bytes(len(content)), b"\0")
    ours = [header for header, _ in members_of(data, has_end=False)]
    assert [header.name for header in ours] == names
    assert [header.owner for header in ours] == [b"key:%d" % n for n in range(6)]
    assert {header.crc32 for header in ours} == {0x8000_ABCD}
    with tarfile.open(fileobj=io.BytesIO(data + bytes(1024))) as tar:
        theirs = tar.getmembers()
    assert [os.fsencode(info.name) for info in theirs] == names
    assert [(info.size, info.uname, info.gname, info.mtime) for info in theirs] == [
        (n * 200, f"key:{n}", "crc32:8000abcd", 0) for n in range(6)
    ]
    large = first_of(write_header(b"a", 8**11, crc32=0))
    assert large.size_bytes == 8**11


def test_other_names_of_groups_are_no_checksums():
    for other in ("crc32:8000", "crc32:-000abcd", "crc32", "users"):
        assert first_of(archive([("a", b"")], gname=other)).crc32 is None


@pytest.mark.parametrize(
    ("kind", "message"),
    [(tarfile.LNKTYPE, "a hard link"), (tarfile.SYMTYPE, "a symbolic link"),
     (tarfile.CHRTYPE, "a device"), (tarfile.BLKTYPE, "a device"), (tarfile.FIFOTYPE, "a pipe"),
     (tarfile.GNUTYPE_SPARSE, "a sparse file"), (b"M", "another volume"),
     (b"Z", "unknown type b'Z'")],
)  # fmt: skip
def test_what_is_no_plain_file_is_refused(kind, message):
    block = bytearray(archive([("a.jpg", b"")])[:512])
    block[156:157] = kind
    with pytest.raises(RecordError, match=f"the member 'a.jpg' is .*{message}"):
        first_of(sealed(block))


@pytest.mark.parametrize("name", ["../up.jpg", "a/../../up.jpg", "/etc/passwd.txt", ".."])
def test_hostile_names_are_refused(name):
    with pytest.raises(RecordError, match="has a name that leads elsewhere"):
        found(archive([(name, b"")]))


def extended(kind, content):
    block = bytearray(archive([("h", content)])[:512])
    block[156:157] = kind
    return bytes(sealed(block)) + content.ljust(stored_bytes(len(content)), b"\0")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"17 path=a\0b.jpg\n\n"[:17], "extended header is damaged|leads elsewhere"),
     (b"14 path=a\0b.j\n", "leads elsewhere"), (b"99 path=a.jpg\n", "extended header is damaged"),
     (b"0 path=a\n", "extended header is damaged"), (b"x path=a\n", "extended header is damaged"),
     (b"9 patha.\n", "extended header is damaged"), (b"8 path=\n", "lacks a name"),
     (b"13 size=-123\n", "has the number"), (b"22 GNU.sparse.major=1\n", "a sparse file")],
)  # fmt: skip
def test_damaged_extensions(content, message):
    with pytest.raises(RecordError, match=message) as error:
        found(extended(b"x", content) + archive([("a.jpg", b"")]))
    assert "\n" not in str(error.value)


def test_extensions_that_are_too_long_for_all_or_for_nobody():
    assert found(extended(b"g", b"15 comment=abc\n") + archive([("a", b"1")])) == [("a", b"1")]
    with pytest.raises(RecordError, match="given for all members"):
        found(extended(b"g", b"9 path=a\n") + archive([("a", b"")]))
    with pytest.raises(RecordError, match="after an extended header"):
        found(extended(b"x", b"9 path=a\n") + bytes(1024))
    with pytest.raises(RecordError, match="after an extended header"):
        found(extended(b"L", b"name\0"))
    block = bytearray(extended(b"x", b"9 path=a\n")[:512])
    block[124:136] = b"77777777777\0"
    with pytest.raises(RecordError, match=r"an extended header of 8,589,934,591 bytes"):
        found(bytes(sealed(block)))
    assert found(extended(b"K", b"target\0") + archive([("a", b"1")])) == [("a", b"1")]


def test_cut_short_anywhere():
    data = archive([("a.jpg", b"x" * 700), (LONG, b"y" * 10)], tarfile.PAX_FORMAT)
    last = data.index(b"y" * 10) + 10
    whole = found(data)
    boundary = 512 + 1024
    for size in range(1, last):
        if size >= 512 + 700 and size <= boundary:
            assert found(data[:size]) == whole[:1]
            continue
        with pytest.raises(RecordError) as error:
            found(data[:size])
        assert "copy it again" in str(error.value)


def test_a_flipped_bit_in_a_header_is_seen():
    data = archive([(LONG, b"1"), ("a.jpg", b"2"), ("b.cls", b"3")], tarfile.PAX_FORMAT)
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    rng = np.random.default_rng(1)
    whole = found(data)
    seen = 0
    for _ in range(600):
        flipped = bytearray(data)
        at = int(rng.choice(headers)) + int(rng.integers(512))
        flipped[at] ^= 1 << int(rng.integers(8))
        try:
            assert found(bytes(flipped)) == whole  # one in a blank of the checksum itself
        except RecordError as error:
            assert "\n" not in str(error)
            seen += 1
    assert seen > 590
