"""Tar archives read as streams: the samples that are in them, and no silently shorter epoch."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from datasets.formats.byte_streams import ByteStream, StreamError
from datasets.formats.tar_stream import Place, TarShard
from datasets.sample import BadRecord

SAMPLE_BYTES = 512 + 1024 + 512 + 512


def tar_bytes(first: int, count: int, *, size_bytes: int = 700) -> bytes:
    """Samples ``number`` with a ``.bin`` and a ``.cls``, written by the standard library."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(first, first + count):
            for ending, content in (
                ("bin", bytes([number % 256]) * (size_bytes + number)),
                ("cls", str(number).encode()),
            ):
                info = tarfile.TarInfo(f"{number:05d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def shard(name: Path | str) -> TarShard:
    return TarShard(ByteStream(str(name), timeout_s=10), takes=lambda extension: True)


def content(item: Any) -> tuple[str, dict[str, bytes]]:
    members = {}
    for name, (value, _) in item.members.items():
        if isinstance(value, Place):
            with open(item.archive, "rb") as file:
                file.seek(value.offset)
                value = file.read(value.size_bytes)
        members[name] = value
    return item.key, members


def expected(first: int, count: int) -> list[tuple[str, dict[str, bytes]]]:
    return [
        (f"{n:05d}", {"bin": bytes([n % 256]) * (700 + n), "cls": str(n).encode()})
        for n in range(first, first + count)
    ]


@pytest.fixture(params=["file", "gzip", "pipe"])
def named(request, tmp_path):
    """Puts bytes where a kind of stream reads them; gives its name."""

    def put(data: bytes) -> str:
        file = tmp_path / "shard.tar"
        file.write_bytes(gzip.compress(data, 1) if request.param == "gzip" else data)
        return f"pipe:cat {file}" if request.param == "pipe" else str(file)

    return put


def test_every_sample_and_what_is_passed_over(named):
    name = named(tar_bytes(0, 20))
    assert [content(item) for item in shard(name)] == expected(0, 20)
    for passed in range(22):
        reader = shard(name)
        assert reader.skip(passed) == min(passed, 20)
        assert [content(item) for item in reader] == expected(passed, 20 - passed)
        reader.close()
    reader = shard(name)
    found = []
    for number in range(0, 20, 4):  # one, then three that are others'
        found.append(content(next(reader)))
        assert reader.skip(3) == 3, number
    assert found == expected(0, 20)[::4] and next(reader, None) is None


def test_archives_one_behind_the_other_are_all_read(named):
    name = named(tar_bytes(0, 3) + tar_bytes(3, 4) + tar_bytes(7, 1))
    assert [content(item) for item in shard(name)] == expected(0, 8)


def test_a_plain_file_is_read_by_its_headers_alone(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_bytes(0, 3))
    for item in shard(tmp_path / "a.tar"):
        assert all(isinstance(value, Place) for value, _ in item.members.values())


@pytest.mark.parametrize("at", range(0, 6400, 256))
def test_an_archive_that_is_cut_off(tmp_path, at):
    data = tar_bytes(0, 2)[:at]
    file = tmp_path / "cut.tar"
    file.write_bytes(data)
    found = list(shard(file))
    good = [item for item in found if not isinstance(item, BadRecord)]
    assert [content(item) for item in good] == expected(0, len(good))
    whole = at >= 2 * SAMPLE_BYTES + 512  # one of the two blocks of the end mark is there
    if not whole and at:
        assert isinstance(found[-1], BadRecord) and "too early" in found[-1].cause
        assert "between byte" in found[-1].cause and found[-1].key == str(file)
    if not whole:  # from a command, that is never an end
        with pytest.raises(StreamError, match="broke off"):
            list(shard(f"pipe:cat {file}"))


def test_damage_says_where_and_ends_the_shard(named):
    data = bytearray(tar_bytes(0, 10))
    data[3 * SAMPLE_BYTES : 3 * SAMPLE_BYTES + 512] = b"x" * 512  # a header
    name = named(bytes(data))
    found = list(shard(name))
    assert isinstance(found[-1], BadRecord) and "between byte" in found[-1].cause
    assert "lost" in found[-1].cause and found[-1].ends_shard
    reader = shard(name)
    assert reader.skip(100) == len(found), "whoever passes over it counts the bad record too"


def test_a_damaged_size_takes_no_memory(tmp_path):
    data = bytearray(tar_bytes(0, 1))
    data[124:136] = b"77777777777\0"
    data[148:156] = b" " * 8
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()
    (tmp_path / "a.tar").write_bytes(data)
    assert isinstance(list(shard(tmp_path / "a.tar"))[-1], BadRecord)
    with pytest.raises(StreamError, match="broke off"):
        list(shard(f"pipe:cat {tmp_path / 'a.tar'}"))
