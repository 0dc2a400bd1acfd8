"""Tar shards that are damaged or cut short anywhere, before the index is made and after."""

import io
import os
import pickle
import zlib

import numpy as np
import pytest

from datasets.formats.npy_bytes import write_npy
from datasets.sample import BadRecord, Record
from datasets.storages.webdataset import WebDatasetStorage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage
from tests.datasets.storages.tar_samples import BOXES, expected, put, read, samples

rng = np.random.default_rng(0)


def test_contract_with_a_damaged_sample_between_good_ones(tmp_path):
    content = samples(20)
    path = put(tmp_path / "a.tar", content)
    storage = WebDatasetStorage(path)
    at = int(storage.index.column("offset")[7]) + 20
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"?")
    want = [(key, None if n == 7 else f) for n, (key, f) in enumerate(expected(content))]
    check_storage(lambda: storage, want, start_methods=("spawn",))
    assert read(storage, 7)[0].cause == "a.tar: a header is damaged (checksum); copy it again"


def test_damaged_content_spoils_its_own_sample(tmp_path):
    good = {"npy": write_npy(BOXES), "txt": b"a"}
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], object), allow_pickle=True)
    damaged = [good | {"txt": b"\xff"}, good | {"npy": write_npy(BOXES)[:-1]},
               good | {"npy": pickled.getvalue()}, good | {"a.json": b"{"}]  # fmt: skip
    content = [(str(n), members) for n, members in enumerate([good, *damaged, good])]
    first, *bad, last = read(WebDatasetStorage(put(tmp_path / "a.tar", content)))
    assert first.fields["text"] == last.fields["text"] == "a"
    assert np.array_equal(first.fields["array"], BOXES)
    causes = ("its txt: 'utf-8'", "its npy: has 31 bytes of float32",
              "its npy: holds Python objects", "its a.json")  # fmt: skip
    for record, cause in zip(bad, causes, strict=True):
        assert cause in record.cause
        assert "\n" not in record.cause


def test_checksums_in_the_archive_are_compared(tmp_path):
    content = [("1", {"jpg": b"right"}), ("2", {"jpg": b"right"})]
    group = f"crc32:{zlib.crc32(b'right'):08x}"
    path = put(tmp_path / "a.tar", content, gname=group)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[data.index(b"right")] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    bad, good = read(WebDatasetStorage(path))
    assert bad.cause == "a.tar: the bytes of '1.jpg' are not those that were packed"
    assert good.fields == {"image": b"right"}
    assert len(read(WebDatasetStorage(path, checksums=False))[0].fields["image"]) == 5


def test_a_shard_cut_short_anywhere_is_one_clear_error(tmp_path):
    path = put(tmp_path / "a.tar", samples(6))
    content = open(path, "rb").read()
    end = len(content.rstrip(b"\0"))
    end += -end % 512
    sizes = {0, 1, 511, 512, 513, end, end - 1, *range(512, end, 512), *range(100, end, 333)}
    for size in sorted(sizes):
        (tmp_path / "a.tar").write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"a.tar: .*copy it again") as error:
            len(WebDatasetStorage(path))
        assert "\n" not in str(error.value)
    (tmp_path / "a.tar").write_bytes(content[: end + 512])
    assert len(WebDatasetStorage(path)) == 6


def test_a_shard_cut_or_gone_while_it_is_open(tmp_path):
    path = put(tmp_path / "a.tar", samples(6))
    storage = WebDatasetStorage(path)
    os.truncate(path, int(storage.index.column("offset")[5]) + 700)
    *good, bad = read(storage)
    assert all(isinstance(record, Record) for record in good)
    assert "copy it again" in bad.cause
    os.unlink(path)
    elsewhere = pickle.loads(pickle.dumps(storage))
    assert "No such file" in read(elsewhere, 0)[0].cause


def test_a_flipped_bit_anywhere_is_an_error_or_spoils_one_sample(tmp_path):
    content = samples(12)
    path = put(tmp_path / "a.tar", content)
    wanted = dict(expected(content))
    bad = refused = 0
    for _ in flipped(path, rng.integers(0, os.path.getsize(path), 300), rng):
        records = unless_refused(lambda: read(WebDatasetStorage(path)))
        if records is None:
            refused += 1
            continue
        assert [record.key for record in records] == list(wanted)
        wrong = [r for r in records if r.fields != wanted[r.key]]
        assert len(wrong) <= 1, "tar has no checksums of its own for content"
        bad += bool(wrong)
    assert refused > 50
    assert bad > 20


def test_a_bit_flipped_behind_the_index_spoils_one_sample(tmp_path):
    content = samples(12)
    path = put(tmp_path / "a.tar", content)
    storage = WebDatasetStorage(path)
    headers = [at for at in range(0, os.path.getsize(path), 512)]
    whole = open(path, "rb").read()
    # The label is in the index: what holds nothing else is not looked at again.
    headers = [at for at in headers if b".jpg" in whole[at : at + 100]]
    wanted = [fields for _, fields in expected(content)]
    bad = 0
    assert len(storage) == 12
    for _ in range(300):
        at = int(rng.choice(headers)) + int(rng.integers(512))
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(bytes([whole[at] ^ (1 << int(rng.integers(8)))]))
        broken = [record for record in read(storage) if isinstance(record, BadRecord)]
        assert len(broken) <= 1
        assert all(record.fields == wanted[record.index] for record in read(storage)
                   if isinstance(record, Record))  # fmt: skip
        bad += len(broken)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(whole[at : at + 1])
    assert bad > 290
