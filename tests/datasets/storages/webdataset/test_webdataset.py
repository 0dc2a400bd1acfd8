"""Tar shards: what the webdataset library writes, labels, odd names and paths."""

from __future__ import annotations

import io
import lzma
import os
import pickle
import shlex
import shutil
import tarfile
import zlib

import numpy as np
import pytest
import webdataset

from penstock.core.arrays import write_npy
from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import RangeFile
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.webdataset import WebDatasetSource, WebDatasetStorage
from penstock.pipeline.config.compose import compose
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, summary
from tests.datasets.storages.webdataset.tar_samples import BOXES, expected, keys, put, read, samples

rng = np.random.default_rng(0)


def test_contract_over_several_shards(tmp_path):
    content = samples(20)
    put(tmp_path / "a/s-000.tar", content[:9])
    put(tmp_path / "a/s-001.tar", content[9:10], tarfile.PAX_FORMAT, pax_headers={"comment": "ü"})
    put(tmp_path / "a/s-002.tar", [])
    put(tmp_path / "a/s-003.tar", [("README", b"no sample"), *content[10:]])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: WebDatasetStorage(str(tmp_path / "a")),
        expected(content),
        make_copy=lambda: WebDatasetStorage(str(tmp_path / "b/s-{000..003}.tar")),
    )
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 8, "nothing is written there"


def test_shards_of_the_library_hold_what_it_reads_from_them(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (9, 7, 3), np.uint8)
    for kind in ("USTAR_FORMAT", "GNU_FORMAT", "PAX_FORMAT"):
        pattern = str(tmp_path / f"{kind}-%03d.tar")
        with webdataset.ShardWriter(pattern, maxcount=5, verbose=0, format=kind) as writer:
            for i in range(12):
                writer.write({
                    "__key__": f"a/b.c/{i:04d}", "png": image + np.uint8(i), "cls": i % 4,
                    "json": {"score": i / 3, "name": "ünï"}, "txt": f"ünï {i}",
                    "boxes.npy": BOXES + i, "seg.png": image[..., 0], "bin": b"\0" * i,
                })  # fmt: skip
        storage = WebDatasetStorage(str(tmp_path / f"{kind}-{{000..002}}.tar"))
        theirs = webdataset.WebDataset(
            [pattern % n for n in range(3)], shardshuffle=False
        )  # undecoded
        for ours, sample in zip(read(storage), theirs, strict=True):
            i = ours.index
            assert ours.key == sample["__key__"]
            fields = dict(ours.fields)
            assert np.array_equal(fields.pop("boxes"), BOXES + i)
            assert fields == {
                "image": sample["png"], "mask": sample["seg.png"], "label": i % 4, "bin":
                sample["bin"], "text": f"ünï {i}", "score": i / 3, "name": "ünï",
            }  # fmt: skip


def test_a_batch_is_read_in_the_order_of_the_shards_and_neighbours_at_once(tmp_path, monkeypatch):
    content = samples(40)
    put(tmp_path / "0.tar", content[:20])
    put(tmp_path / "1.tar", content[20:])
    storage = WebDatasetStorage(str(tmp_path))
    assert len(storage) == 40
    places = []
    read_upto = RangeFile.read_upto
    monkeypatch.setattr(
        RangeFile, "read_upto",
        lambda file, at, size: places.append((file.path, at)) or read_upto(file, at, size),
    )  # fmt: skip
    order = rng.permutation(40)
    assert summary(read(storage, *order)) == [(i, *expected(content)[i]) for i in order]
    assert len(places) == 2
    assert places == sorted(places)


def test_labels_by_number_by_name_and_from_json(tmp_path):
    path = put(tmp_path / "n/a.tar", [("1", {"cls": b"2"}), ("2", {"cls": b" 0\n"})])
    assert WebDatasetStorage(path).index.column("label").tolist() == [2, 0]
    assert WebDatasetStorage(path).index.class_names == ("0", "1", "2")
    (tmp_path / "n/classes.txt").write_text("ash\nbirch\ncedar\n")
    assert WebDatasetStorage(path).index.class_names == ("ash", "birch", "cedar")
    other = WebDatasetStorage(path, classes=["cedar", "ash"])
    assert (other.index.column("label").tolist(), other.index.class_names) == (
        [0, 1],
        ("cedar", "ash"),
    )
    assert [record.fields for record in read(other)] == [{"label": 0}, {"label": 1}]
    named = [("1", {"json": b'{"label": "dog", "n": 1}'}), ("2", {"json": b'{"label": "cat"}'})]
    storage = WebDatasetStorage(put(tmp_path / "j/a.tar", named))
    assert storage.index.class_names == ("cat", "dog")
    assert [record.fields for record in read(storage)] == [{"label": 1, "n": 1}, {"label": 0}]
    (tmp_path / "n/classes.txt").write_text("ash\n")
    with pytest.raises(ValueError, match="label 2, but the data names 1 classes"):
        len(WebDatasetStorage(path))
    (tmp_path / "n/classes.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"classes.txt cannot be read"):
        len(WebDatasetStorage(path))


def test_labels_that_are_not_there(tmp_path):
    path = put(tmp_path / "a.tar", [("1", {"jpg": b"a", "cls": b"1"}), ("2", {"jpg": b"b"})])
    with pytest.raises(ValueError, match=r"1 of 2 samples lack a label, such as '2'; add them"):
        len(WebDatasetStorage(path))
    storage = WebDatasetStorage(path, fields={"image": "jpg"})
    assert storage.index.class_names is None
    assert [record.fields for record in read(storage)] == [{"image": b"a"}, {"image": b"b"}]
    late = put(tmp_path / "b.tar", [("1", {"json": b"{}"}), ("2", {"json": b'{"label": 3}'})])
    good, bad = read(WebDatasetStorage(late))
    assert good.fields == {}
    assert "it has a label" in bad.cause
    with pytest.raises(ValueError, match=r"b.tar: sample '1': its json: Expecting"):
        len(WebDatasetStorage(put(tmp_path / "b.tar", [("1", {"json": b"{"})])))
    with pytest.raises(ValueError, match=r"sample '1': its label is \[1, 2\], expected a class id"):
        len(WebDatasetStorage(put(tmp_path / "b.tar", [("1", {"json": b'{"label": [1, 2]}'})])))


def test_chosen_fields_and_samples_without_them(tmp_path):
    content = [("1", {"json": b"{}", "jpg": b"j", "mp4": b"m"}), ("2", {"png": b"p"}),
               ("3", {"mp4": b"m"})]  # fmt: skip
    path = put(tmp_path / "a.tar", content)
    storage = WebDatasetStorage(path, fields={"image": "jpg;png"})
    assert storage.index.column("size_bytes").tolist() == [1, 1, 0]
    *good, bad = read(storage)
    assert [record.fields for record in good] == [{"image": b"j"}, {"image": b"p"}]
    assert bad.cause == "a.tar: it has no jpg or png for the field 'image', only mp4"
    assert storage.fingerprint() != WebDatasetStorage(path).fingerprint()


def test_keys_that_stand_twice(tmp_path):
    put(tmp_path / "0.tar", samples(3))
    put(tmp_path / "1.tar", samples(3))
    with pytest.raises(
        ValueError, match=r"'dir/000' stands twice, in 0.tar and 1.tar; .*shard_keys"
    ):
        len(WebDatasetStorage(str(tmp_path)))
    storage = WebDatasetStorage(str(tmp_path), shard_keys=True)
    assert keys(storage)[2:4] == ["0/dir/002", "1/dir/000"]
    assert [record.fields for record in read(storage)] == [f for _, f in expected(samples(3))] * 2
    with pytest.raises(ValueError, match=r"'1' stands twice, in a.tar and a.tar"):
        len(WebDatasetStorage(put(tmp_path / "a.tar", [("1", {"a": b""}), ("2", {"a": b""}),
                                                       ("1", {"b": b""})])))  # fmt: skip
    with pytest.raises(ValueError, match=r"a.tar: the member '1.a' stands twice"):
        len(WebDatasetStorage(put(tmp_path / "a.tar", [("1.a", b""), ("1.a", b"")])))


def test_odd_names(tmp_path):
    names = ["ünï 日本", "x" * 300, "./dot", "UPPER", "a b"]
    storage = WebDatasetStorage(put(tmp_path / "a.tar", [(n, {"TXT": n.encode()}) for n in names]))
    assert keys(storage) == ["ünï 日本", "x" * 300, "dot", "UPPER", "a b"]
    assert [record.fields["text"] for record in read(storage)] == names
    latin = put(tmp_path / "b.tar", [("\udcff", {"txt": b"1"})])
    [record] = read(WebDatasetStorage(latin))
    assert (record.key, record.fields) == (r"\xff", {"text": "1"})


@pytest.mark.parametrize(
    ("content", "message"),
    [([("../up.jpg", b"")], "'../up.jpg' has a name that leads elsewhere"),
     ([("README", b"1")], "no sample in there; expected members such as"), ([], "no sample in")],
)  # fmt: skip
def test_shards_without_samples_or_with_hostile_names(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        len(WebDatasetStorage(put(tmp_path / "a.tar", content)))


def test_links_are_refused(tmp_path):
    for kind, what in ((tarfile.SYMTYPE, "a symbolic link"), (tarfile.LNKTYPE, "a hard link")):
        path = put(tmp_path / "a.tar", [("1.jpg", b"")], type=kind, linkname="/etc/passwd")
        with pytest.raises(ValueError, match=f"a.tar: the member '1.jpg' is {what}"):
            len(WebDatasetStorage(path))


def test_shards_compressed_by_other_methods_are_refused_with_the_stream_to_type(tmp_path):
    content = open(put(tmp_path / "a.tar", samples(3)), "rb").read()
    (tmp_path / "s.tar").write_bytes(lzma.compress(content))
    with pytest.raises(ValueError, match=r"\(xz\), expected gzip, zstd or nothing; unp") as error:
        len(WebDatasetStorage(str(tmp_path / "s.tar")))
    typed = shlex.split(str(error.value).partition("type ")[2])
    source = WebDatasetSource(compose(typed)["dataset"]["source"]["path"])
    [shard] = source.shards(0)
    assert len(list(source.read(shard, 0))) == 3


def test_paths(tmp_path):
    for n in (0, 1, 3):
        put(tmp_path / f"d/s-{n:03d}.tar", samples(2, start=n * 2))
    here = str(tmp_path / "d")
    with pytest.raises(ValueError, match=r"97 of 100 files are missing, the first is .*s-002.tar;"):
        len(WebDatasetStorage(f"{here}/s-{{000..099}}.tar"))
    assert len(WebDatasetStorage([f"{here}/s-{{000..001}}.tar", f"{here}/s-003.tar"])) == 6
    assert keys(WebDatasetStorage(f"{here}/s-{{003,000}}.tar")) == keys(
        WebDatasetStorage([f"{here}/s-003.tar", f"{here}/s-000.tar"])
    )
    assert len(WebDatasetStorage(f"{here}/*-00[01].tar")) == 4
    with pytest.raises(ValueError, match=r"s-000.tar is named twice"):
        len(WebDatasetStorage([f"{here}/s-000.tar", f"{here}/s-*.tar"]))
    with pytest.raises(ValueError, match="nothing there; set"):
        len(WebDatasetStorage(f"{here}/no.tar"))
    with pytest.raises(ValueError, match=r"no file found; expected a file, a folder of .tar"):
        len(WebDatasetStorage(f"{here}/no-*.tar"))
    with pytest.raises(ValueError, match="path is an empty list"):
        WebDatasetStorage([])
    assert str(WebDatasetStorage(["/a.tar", "/b.tar"])) == "webdataset /a.tar and 1 more"


@pytest.mark.parametrize("names", ["{}-{:06d}.tar", "data/photos-{}_{:02d}.tar"])
def test_shards_by_part_are_training_and_validation(tmp_path, names):
    for n in range(2):
        put(tmp_path / names.format("train", n), samples(5, start=n * 5))
    put(tmp_path / names.format("val", 0), samples(3, start=10))
    (tmp_path / names.format("val", 0)).with_name("classes.txt").write_text("a\nb\nc")
    recipe = StorageRecipe(WebDatasetStorage, {"path": str(tmp_path)})
    train = open_split(recipe, split="train", val_fraction=0.5)
    val = open_split(recipe, split="val", val_fraction=0.5)
    assert keys(train) == [key for key, _ in samples(10)]
    assert keys(val) == [key for key, _ in samples(3, start=10)]
    assert val.index.class_names == train.index.class_names == ("a", "b", "c")


def test_shards_put_one_behind_the_other_are_all_read(tmp_path):
    first = open(put(tmp_path / "1.tar", samples(3)), "rb").read()
    second = open(put(tmp_path / "2.tar", samples(3, start=3)), "rb").read()
    (tmp_path / "a.tar").write_bytes(first + second)
    assert len(WebDatasetStorage(str(tmp_path / "a.tar"))) == 6
    (tmp_path / "a.tar").write_bytes(first + b"more")
    with pytest.raises(ValueError, match="ends within a header"):
        len(WebDatasetStorage(str(tmp_path / "a.tar")))


def test_contract_with_a_damaged_sample_between_good_ones(tmp_path):
    content = samples(20)
    path = put(tmp_path / "a.tar", content)
    storage = WebDatasetStorage(path)
    at = int(storage.index.column("offset")[7]) + 20
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"?")
    want = [(key, None if n == 7 else f) for n, (key, f) in enumerate(expected(content))]
    check_storage(lambda: storage, want, processes=("new",))
    assert read(storage, 7)[0].cause == "a.tar: a header is damaged (bad checksum); copy it again"


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
    for _ in flipped(
        path,
        rng.integers(0, os.path.getsize(path), 300),
        rng,
    ):
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


def test_a_second_start_looks_again_only_if_a_shard_changed(tmp_path, monkeypatch):
    path = put(tmp_path / "a.tar", samples(6))
    first = WebDatasetStorage(path).fingerprint()
    with monkeypatch.context() as patch:
        patch.setattr("penstock.datasets.storages.webdataset.storage.Window", None)
        assert WebDatasetStorage(path).fingerprint() == first
    put(tmp_path / "a.tar", samples(7))
    assert len(WebDatasetStorage(path)) == 7


def test_only_headers_and_labels_are_read_of_large_samples(tmp_path, monkeypatch):
    content = [(str(n), {"cls": b"1", "jpg": bytes(300_000)}) for n in range(20)]
    path = put(tmp_path / "a.tar", content)
    sizes = []
    read_upto = RangeFile.read_upto
    monkeypatch.setattr(
        RangeFile, "read_upto",
        lambda file, at, size: sizes.append(size) or read_upto(file, at, size),
    )  # fmt: skip
    assert len(WebDatasetStorage(path)) == 20
    assert sum(sizes) < 1_000_000 < os.path.getsize(path)


def test_many_shards_are_found_in_their_order(tmp_path):
    for n in range(20):
        put(tmp_path / f"s-{n:02d}.tar", samples(4, start=n * 4))
    storage = WebDatasetStorage(str(tmp_path))
    assert keys(storage) == [key for key, _ in samples(80)]
    assert [record.fields for record in read(storage)] == [f for _, f in expected(samples(80))]
    os.truncate(tmp_path / "s-03.tar", 700)
    os.truncate(tmp_path / "s-17.tar", 700)
    with pytest.raises(ValueError, match=r"webdataset .*: s-03.tar: .*copy it again"):
        len(WebDatasetStorage(str(tmp_path)))
