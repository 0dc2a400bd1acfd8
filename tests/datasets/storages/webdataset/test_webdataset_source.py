"""Tar archives as a stream: every way to bring them gives the same samples."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.byte_streams import StreamError
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.webdataset.source import WebDatasetSource
from penstock.datasets.storages.webdataset.storage import WebDatasetStorage
from penstock.datasets.storages.webdataset.writer import WebDatasetWriter
from penstock.datasets.writing import write_storage
from tests.contracts.source import check_source
from tests.datasets.test_byte_streams import served


def write_tar(samples: list[tuple[str, dict[str, bytes]]], **more: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for key, members in samples:
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                for name, value in more.items():
                    setattr(info, name, value)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def samples(first: int, count: int) -> list[tuple[str, dict[str, bytes]]]:
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3))
    return [
        (
            f"a/{n:03d}",
            {
                "jpg": b"jpeg %d" % n,
                "cls": b"cat" if n % 2 else b"dog",
                "json": json.dumps({"boxes": [[1, 2, 3, 4]], "width": n}).encode(),
                "features.npy": array.getvalue(),
            },
        )
        for n in range(first, first + count)
    ]


def records(source: WebDatasetSource) -> list[Any]:
    source = pickle.loads(pickle.dumps(source))
    found = []
    for shard in source.shards(0):
        reader = source.read(shard, 0)
        found += [item if isinstance(item, BadRecord) else source.load(item) for item in reader]
        reader.close()
    return found


def plain(record: Record) -> Any:
    fields = {
        name: (value.dtype.str, value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in record.fields.items()
    }
    return record.key, fields


@pytest.fixture
def shards(tmp_path) -> Path:
    for number, (first, count) in enumerate(((0, 3), (3, 0), (3, 5))):
        (tmp_path / f"shard-{number:02d}.tar").write_bytes(write_tar(samples(first, count)))
    return tmp_path


def test_every_way_to_name_them_gives_the_same_samples(shards):
    folder = WebDatasetSource(str(shards), classes=["dog", "cat"])
    expected = [plain(record) for record in records(folder)]
    assert [key for key, _ in expected] == [f"a/{n:03d}" for n in range(8)]
    check_source(lambda: WebDatasetSource(str(shards), classes=2), [key for key, _ in expected])
    assert expected[1][1]["label"] == 1 and expected[1][1]["image"] == b"jpeg 1"
    assert expected[1][1]["boxes"] == [[1, 2, 3, 4]] and folder.class_names == (
        "dog",
        "cat",
    )
    for file in sorted(shards.glob("*.tar")):
        (shards / f"{file.stem}.tar.gz").write_bytes(gzip.compress(file.read_bytes()))
    sent = b"".join(file.read_bytes() for file in sorted(shards.glob("*.tar")))
    for path in (
        f"{shards}/shard-*.tar",
        f"{shards}/shard-{{00..02}}.tar",
        f"{shards}/shard-*.tar.gz",
        f"pipe:cat {shards}/shard-{{00..02}}.tar",
        f"pipe:sh -c 'gunzip -c < {shards}/shard-{{00,01,02}}.tar.gz'",
        f"pipe:gzip -dc {shards}/shard-{{00..02}}.tar.gz",
        served(sent),
    ):
        source = WebDatasetSource(path, classes=["dog", "cat"])
        assert [plain(record) for record in records(source)] == expected, path
        assert source.reopens == (not path.startswith("tcp"))


def test_fields_can_be_chosen_and_what_is_not_is_not_read(shards):
    source = WebDatasetSource(f"{shards}/shard-00.tar", fields={"image": "png;jpg"})
    assert [record.fields for record in records(source)] == [
        {"image": b"jpeg %d" % n} for n in range(3)
    ]
    items = list(WebDatasetSource(
        f"pipe:cat {shards}/shard-00.tar", fields={"image": "jpg"}
    ).read(f"pipe:cat {shards}/shard-00.tar", 0))  # fmt: skip
    assert [set(item.members) for item in items] == [{"jpg"}] * 3


def test_labels_need_classes_that_are_known(shards, tmp_path):
    bad = records(WebDatasetSource(str(shards)))
    assert all(isinstance(record, BadRecord) and "classes=[...]" in record.cause for record in bad)
    bad = records(WebDatasetSource(str(shards), classes=["cat"]))
    assert ["not among the 1 classes" in str(record) for record in bad] == [True, False] * 4
    (shards / "classes.txt").write_text("dog\ncat\n")
    assert WebDatasetSource(str(shards)).class_names == ("dog", "cat")
    with pytest.raises(ValueError, match="stands twice"):
        WebDatasetSource(str(shards), classes=["a", "a"])


def test_one_damaged_sample_spoils_no_other(shards):
    three = samples(0, 3)
    three[1][1]["json"] = b"{"
    (shards / "shard-00.tar").write_bytes(write_tar(three))
    found = records(WebDatasetSource(f"{shards}/shard-00.tar", classes=["dog", "cat"]))
    assert [isinstance(record, BadRecord) for record in found] == [False, True, False]
    import zlib

    content = b"jpeg"
    for crc32, good in ((zlib.crc32(content), True), (1, False)):
        data = write_tar([("k", {"jpg": content})], gname=f"crc32:{crc32:08x}")
        (shards / "sums.tar").write_bytes(data)
        (record,) = records(WebDatasetSource(f"{shards}/sums.tar"))
        assert isinstance(record, Record) == good
        assert good or "checksum" in record.cause


def test_no_damage_ends_in_anything_but_bad_records(tmp_path):
    data = write_tar(samples(0, 4))
    draw = random.Random(7)
    for name, whole in (("a.tar", data), ("a.tar.gz", gzip.compress(data))):
        for turn in range(60):
            damaged = bytearray(whole)
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
            if turn % 4 == 0:
                damaged = damaged[: draw.randrange(len(damaged))]
            (tmp_path / name).write_bytes(damaged)
            found = records(WebDatasetSource(str(tmp_path / name), classes=["dog", "cat"]))
            assert all(isinstance(record, (Record, BadRecord)) for record in found)
            whole_again = len(found) == 4 and not any(isinstance(r, BadRecord) for r in found)
            assert whole_again or turn % 4 or isinstance(found[-1], BadRecord), "never shorter"


def test_what_was_packed_streams_with_the_keys_that_its_index_has(tmp_path):
    names = ["a/1.jpg", "a.b/2.tar.jpg", "a/100%.jpg", "b/.1.jpg", "b/ä ö.JPG", "b/2'.jpeg"]
    for name in [*map(os.fsencode, names), b"b/\xff\xfe.jpg", b"b/tab\there.png"]:
        file = os.path.join(os.fsencode(tmp_path / "files"), name)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        with open(file, "wb") as opened:
            opened.write(b"\xff\xd8" + name)
    source = ImageFolder(str(tmp_path / "files"), hidden=True)
    write_storage(WebDatasetWriter(shard_records=3), tmp_path / "tar", source)
    rows = np.arange(len(names) + 2)
    expected = WebDatasetStorage(str(tmp_path / "tar")).read(rows)
    assert [r.key for r in expected] == source.index.keys(rows)
    found = records(WebDatasetSource(str(tmp_path / "tar")))
    assert [(r.key, r.fields) for r in found] == [(r.key, r.fields) for r in expected]


def test_mistakes_are_one_line(tmp_path):
    for path, said in (
        (str(tmp_path / "none"), "nothing there"),
        (str(tmp_path), "no file found"),
        ("pipe:", "lacks a command"),
        ("tcp://nowhere", "expected tcp://host:port"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            WebDatasetSource(path)
        assert "\n" not in str(error.value)


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


def shard(name: Path | str) -> Any:
    every = {"bin": "bin", "cls": "cls"}
    return WebDatasetSource(str(name), fields=every).read(str(name), 0)


def content(item: Any) -> tuple[str, dict[str, bytes]]:
    members = {}
    for name, member in item.members.items():
        members[name] = member.value
        if member.value is None:
            with open(item.archive, "rb") as file:
                file.seek(member.offset)
                members[name] = file.read(member.size_bytes)
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


def test_archives_one_behind_the_other_are_all_read(named):
    name = named(tar_bytes(0, 3) + tar_bytes(3, 4) + tar_bytes(7, 1))
    assert [content(item) for item in shard(name)] == expected(0, 8)


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


def test_a_damaged_size_takes_no_memory(tmp_path):
    data = bytearray(tar_bytes(0, 1))
    data[124:136] = b"77777777777\0"
    data[148:156] = b" " * 8
    data[148:156] = f"{sum(data[:512]):06o}\0 ".encode()
    (tmp_path / "a.tar").write_bytes(data)
    assert isinstance(list(shard(tmp_path / "a.tar"))[-1], BadRecord)
    with pytest.raises(StreamError, match="broke off"):
        list(shard(f"pipe:cat {tmp_path / 'a.tar'}"))
