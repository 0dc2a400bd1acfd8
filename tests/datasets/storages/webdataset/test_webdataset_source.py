"""Tar archives as a stream: every way to bring them gives the same samples."""

from __future__ import annotations

import gzip
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.storages.webdataset.source import WebDatasetSource
from tests.contracts.source import check_source
from tests.datasets.storages.webdataset.tar_samples import put
from tests.datasets.test_byte_streams import served

CLASSES = ["dog", "cat"]


def write_tar(path: Path, first: int, count: int, **changes: bytes) -> bytes:
    content = [
        (f"a/{n:03d}", {"jpg": b"jpeg %d" % n, "cls": b"cat" if n % 2 else b"dog",
                        "json": json.dumps({"boxes": [[1, 2, 3, 4]], "width": n}).encode(),
                        **(changes if n == 1 else {})})
        for n in range(first, first + count)
    ]  # fmt: skip
    return Path(put(path, content)).read_bytes()


def records(path: Any, classes: Any = CLASSES) -> list[Any]:
    source = pickle.loads(pickle.dumps(WebDatasetSource(str(path), classes=classes)))
    found = []
    for shard in source.shards(0):
        reader = source.read(shard, 0)
        found += [item if isinstance(item, BadRecord) else source.load(item) for item in reader]
        reader.close()
    return found


def test_every_way_to_name_them_gives_the_same_samples(tmp_path):
    for number, (first, count) in enumerate(((0, 3), (3, 0), (3, 5))):
        data = write_tar(tmp_path / f"shard-{number:02d}.tar", first, count)
        (tmp_path / f"shard-{number:02d}.tar.gz").write_bytes(gzip.compress(data))
    plain = f"{tmp_path}/shard-*.tar"
    expected = records(plain)
    keys = [f"a/{n:03d}" for n in range(8)]
    assert [record.key for record in expected] == keys
    check_source(lambda: WebDatasetSource(plain, classes=CLASSES), keys)
    assert expected[1].fields == {
        "image": b"jpeg 1", "label": 1, "boxes": [[1, 2, 3, 4]], "width": 1,
    }  # fmt: skip
    sent = b"".join(file.read_bytes() for file in sorted(tmp_path.glob("*.tar")))
    for path in (
        f"{tmp_path}/shard-{{00..02}}.tar",
        f"{tmp_path}/shard-*.tar.gz",
        f"pipe:cat {tmp_path}/shard-{{00..02}}.tar",
        f"pipe:sh -c 'gunzip -c < {tmp_path}/shard-{{00,01,02}}.tar.gz'",
        served(sent),
    ):
        assert records(path) == expected, path


def test_one_damaged_sample_spoils_no_other(tmp_path):
    write_tar(tmp_path / "a.tar", 0, 3, json=b"{")
    kinds = [type(record) for record in records(tmp_path / "a.tar")]
    assert kinds == [Record, BadRecord, Record]
    for crc32, kind in ((zlib.crc32(b"jpeg"), Record), (1, BadRecord)):
        put(tmp_path / "sums.tar", [("k", {"jpg": b"jpeg"})], gname=f"crc32:{crc32:08x}")
        assert [type(record) for record in records(tmp_path / "sums.tar")] == [kind]


@pytest.mark.parametrize("kind", ["file", "gzip", "pipe"])
def test_archives_one_behind_the_other_are_read_until_damage_ends_the_shard(tmp_path, kind):
    def read(data: bytes) -> list[Any]:
        file = tmp_path / "shard.tar"
        file.write_bytes(gzip.compress(data, 1) if kind == "gzip" else data)
        return records(f"pipe:cat {file}" if kind == "pipe" else file)

    parts = ((0, 3), (3, 4), (7, 1))
    data = bytearray(b"".join(write_tar(tmp_path / "part.tar", *part) for part in parts))
    assert [record.fields["width"] for record in read(bytes(data))] == [*range(8)]
    at = data.index(b"a/004.jpg")
    data[at : at + 512] = b"x" * 512
    found = read(bytes(data))
    assert len(found) == 4 and "between byte" in found[-1].cause
    assert "lost" in found[-1].cause and found[-1].ends_shard


def test_an_archive_that_is_cut_off(tmp_path):
    file = tmp_path / "cut.tar"
    whole = write_tar(file, 0, 2)
    end = len(whole.rstrip(b"\0")) + 512  # in the first block of the end mark
    huge = bytearray(whole)
    huge[124:136] = b"77777777777\0"
    huge[148:156] = b" " * 8
    huge[148:156] = f"{sum(huge[:512]):06o}\0 ".encode()
    for data in (bytes(huge), *(whole[:at] for at in range(256, end, 256))):
        file.write_bytes(data)
        found = records(file)
        if isinstance(found[-1], Record):  # a block of the end mark is there
            assert len(found) == 2 and data.endswith(bytes(512))
            continue
        assert "it ends" in found[-1].cause and found[-1].key == str(file)
        assert [r.fields["width"] for r in found[:-1]] == [*range(len(found) - 1)]
        with pytest.raises(StreamError, match="broke off"):  # from a command, never an end
            records(f"pipe:cat {file}")
