"""ZIP archives: what others write, hostile names, and damage anywhere."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import stat
import struct
import zipfile

import numpy as np
import pytest

from penstock.core.sample import BadRecord, Record
from penstock.datasets.files.access import RangeFile
from penstock.datasets.storages.zip import Zip, ZipStorage, ZipWriter
from penstock.datasets.writing import write_storage
from tests.contracts.damage import flipped, unless_refused
from tests.contracts.storage import check_storage, read_all, summary
from tests.datasets.writers.writer_contract import ListedRecords, assert_equal_records, check_writer

rng = np.random.default_rng(0)


def put(path, files, method=zipfile.ZIP_STORED, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            for option, value in options.items():
                setattr(info, option, value)
            archive.writestr(info, content)
    return str(path)


def images(n, seed=0):
    """Some that deflate well, some that do not, and one that is empty."""
    random = np.random.default_rng(seed)
    return {
        f"{'dog' if i % 3 else 'cat'}/{i:02d}.jpg": bytes(i * 50) if i % 2 else random.bytes(i * 9)
        for i in range(n)
    }


def expected(files):
    return [
        (key, {"image": content, "label": ("cat", "dog").index(key.split("/")[0])})
        for key, content in sorted(files.items())
    ]


def keys(storage):
    return storage.index.keys(np.arange(len(storage)))


def test_contract_over_several_archives(tmp_path):
    first, second = images(12), {"cat/ünï 日本.PNG": b"more", "dog/deep/er/x.webp": b"x" * 5000}
    put(tmp_path / "a/1.zip", first)
    put(tmp_path / "a/2.zip", second | {"README.txt": b"", "cat/.hidden.jpg": b"",
        "__MACOSX/cat/1.jpg": b"", "dog/": b""}, zipfile.ZIP_DEFLATED)  # fmt: skip
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    check_storage(
        lambda: ZipStorage(str(tmp_path / "a")),
        expected(first | second),
        make_copy=lambda: ZipStorage(str(tmp_path / "b/*.zip")),
    )
    assert sum(p.is_file() for p in tmp_path.rglob("*")) == 4, "nothing is written there"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_contract_with_a_damaged_member_between_good_ones(tmp_path, method):
    files = images(12)
    path = put(tmp_path / "a.zip", files, method)
    storage = ZipStorage(path)
    row = keys(storage).index("dog/10.jpg")
    at = int(storage.index.column("offset")[row]) + 30 + len("dog/10.jpg") + 20
    content = bytearray(open(path, "rb").read())
    content[at] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    want = [(key, None if key == "dog/10.jpg" else f) for key, f in expected(files)]
    check_storage(lambda: storage, want, processes=("new",))
    assert "a.zip: its bytes are not those" in storage.read(np.array([row]))[0].cause
    assert isinstance(ZipStorage(path, checksums=False).read(np.array([row]))[0], Record)


def test_places_with_long_headers_and_bytes_before_the_archive(tmp_path):
    files = images(6)
    extra = struct.pack("<HH", 0x9999, 300) + bytes(300)
    path = put(tmp_path / "a.zip", files, extra=extra)
    assert summary(ZipStorage(path).read(np.arange(6))) == [
        (i, *record) for i, record in enumerate(expected(files))
    ]
    content = open(path, "rb").read()
    with open(path, "wb") as file:
        file.write(b"#!/bin/sh\nexit\n" + content)
    assert len(ZipStorage(path).read(np.arange(6))) == 6
    streamed = io.BytesIO()
    with zipfile.ZipFile(_NotSeekable(streamed), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.jpg", b"sizes stand behind the data" * 9)
    (tmp_path / "s.zip").write_bytes(streamed.getvalue())
    [record] = ZipStorage(str(tmp_path / "s.zip")).read(np.array([0]))
    assert record.fields["image"] == b"sizes stand behind the data" * 9


class _NotSeekable(io.RawIOBase):
    def __init__(self, inner):
        self.inner = inner

    def write(self, data):
        return self.inner.write(data)

    def flush(self):
        pass


def test_neighbours_are_read_at_once(tmp_path, monkeypatch):
    path = put(tmp_path / "a.zip", {f"a/{n:02d}.jpg": bytes(20_000) for n in range(20)})
    storage = ZipStorage(path)
    assert len(storage) == 20
    places = []
    read_upto = RangeFile.read_upto
    monkeypatch.setattr(
        RangeFile, "read_upto",
        lambda file, offset, size: places.append(offset) or read_upto(file, offset, size),
    )  # fmt: skip
    storage.read(rng.permutation(20))
    assert len(places) == 1
    storage.read(np.array([15, 5, 4]))
    assert places[1:] == storage.index.column("offset")[[4, 15]].tolist()


def test_a_folder_inside_and_other_labels(tmp_path):
    files = {"set/train/cat/1.jpg": b"1", "set/train/dog/2.jpg": b"2", "set/val/cat/3.jpg": b"3"}
    path = put(tmp_path / "a.zip", files)
    storage = ZipStorage(path, folder="set/train")
    assert keys(storage) == ["cat/1.jpg", "dog/2.jpg"]
    assert storage.index.class_names == ("cat", "dog")
    with pytest.raises(ValueError, match="train and val"):
        len(ZipStorage(path, folder="set/"))
    names = ZipStorage(path, labels="filename", label_pattern=r"(\d)\.")
    assert names.index.class_names == ("1", "2", "3")
    assert ZipStorage(path, labels=None).read(np.array([2]))[0].fields == {"image": b"3"}
    (tmp_path / "l.csv").write_text("key,label\nset/train/cat/1,a\nset/train/dog/2,b\n")
    with pytest.raises(ValueError, match=r"1 of 3 records .*'set/val/cat/3"):
        len(ZipStorage(path, labels="l.csv", unlabelled="error"))
    part = ZipStorage(path, labels="l.csv")
    assert [record.fields["image"] for record in part.read(np.arange(2))] == [b"1", b"2"]
    (tmp_path / "l.csv").write_text(
        "key,label\nset/train/cat/1,a\nset/train/dog/2,b\nset/val/cat/3,a"
    )
    assert ZipStorage(path, labels="l.csv").index.column("label").tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="class 'dog' is not among the 1 classes"):
        len(ZipStorage(path, folder="set/train", classes=["cat"]))


@pytest.mark.parametrize(
    "name",
    ["../up.jpg", "a/../../up.jpg", "/etc/x.jpg", "a\\..\\b.jpg", "C:/x.jpg", "a//b.jpg",
     "./a.jpg", "a/\0.jpg"],
)  # fmt: skip
def test_hostile_names_are_refused(tmp_path, name):
    path = put(tmp_path / "a.zip", {"a/X.jpg": b"", "a/ok.jpg": b""})
    content = open(path, "rb").read()
    if "\0" in name:  # the library would cut it there
        content = content.replace(b"a/X.jpg", b"a/\0.jpg")
    else:
        put(tmp_path / "a.zip", {name: b"", "a/ok.jpg": b""})
        content = open(path, "rb").read()
    (tmp_path / "b.zip").write_bytes(content)
    with pytest.raises(ValueError, match="has a name that leads elsewhere") as error:
        len(ZipStorage(str(tmp_path / "b.zip")))
    assert "\n" not in str(error.value)


def test_members_that_cannot_be_taken(tmp_path):
    link = put(tmp_path / "l.zip", {"a/1.jpg": b"/etc/passwd"},
               external_attr=(stat.S_IFLNK | 0o777) << 16, create_system=3)  # fmt: skip
    with pytest.raises(ValueError, match=r"the member 'a/1.jpg' is a link"):
        len(ZipStorage(link))
    packed = put(tmp_path / "b.zip", {"a/1.jpg": b"x" * 100}, zipfile.ZIP_BZIP2)
    with pytest.raises(ValueError, match=r"'a/1.jpg' is compressed by method 12, expected 0"):
        len(ZipStorage(packed))
    secret = bytearray(open(put(tmp_path / "e.zip", {"a/1.jpg": b"x"}), "rb").read())
    secret[secret.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "e.zip").write_bytes(secret)
    with pytest.raises(ValueError, match=r"'a/1.jpg' is encrypted"):
        len(ZipStorage(str(tmp_path / "e.zip")))
    with pytest.warns(UserWarning), zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a/1.jpg", b"1")
        archive.writestr("a/1.jpg", b"2")
    with pytest.raises(ValueError, match=r"'a/1.jpg' stands twice, in t.zip and t.zip"):
        len(ZipStorage(str(tmp_path / "t.zip")))
    put(tmp_path / "two/1.zip", {"a/1.jpg": b"1"})
    put(tmp_path / "two/2.zip", {"a/1.jpg": b"1"})
    with pytest.raises(ValueError, match=r"'a/1.jpg' stands twice, in 1.zip and 2.zip"):
        len(ZipStorage(str(tmp_path / "two")))


def test_a_member_that_says_it_is_huge_takes_no_memory(tmp_path):
    bomb = put(tmp_path / "a.zip", {"a/1.jpg": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    content = bytearray(open(bomb, "rb").read())
    at = content.index(b"PK\x01\x02")
    causes = []
    for size in (100, 0x3000_0000, 0xFFFF_FFF0):
        struct.pack_into("<I", content, at + 24, size)
        (tmp_path / "b.zip").write_bytes(content)
        [bad] = ZipStorage(str(tmp_path / "b.zip")).read(np.array([0]))
        causes.append(bad.cause)
    said = ("should have 100", "should have 805,306,368", "more than dataset.max_record_bytes")
    assert all(words in cause for words, cause in zip(said, causes, strict=True))


def test_wrong_paths(tmp_path):
    for path, message in (("no.zip", "nothing there"), ("no-*.zip", "no file found"),
                          ("", r"no file found; expected a file, a folder of .zip")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            len(ZipStorage(str(tmp_path / path)))
    with pytest.raises(ValueError, match=r"no image found, among 1 .txt; expected names that end"):
        len(ZipStorage(put(tmp_path / "a.zip", {"a.txt": b""})))
    with pytest.raises(ValueError, match="no image found, among no files at all"):
        len(ZipStorage(put(tmp_path / "a.zip", {})))
    with pytest.raises(ValueError, match="1 of 1 files are outside class folders"):
        len(ZipStorage(put(tmp_path / "a.zip", {"1.jpg": b""})))


def test_an_archive_cut_short_anywhere_is_one_clear_error(tmp_path):
    path = put(tmp_path / "a.zip", images(12))
    content = open(path, "rb").read()
    directory = content.index(b"PK\x01\x02")
    for size in (0, 1, 22, 100, directory, directory + 46, len(content) - 22, len(content) - 1):
        with open(path, "wb") as file:
            file.write(content[:size])
        with pytest.raises(ValueError, match="damaged or no ZIP archive") as error:
            len(ZipStorage(path))
        assert "\n" not in str(error.value)


def test_an_archive_cut_or_gone_while_it_is_open(tmp_path):
    files = images(12)
    path = put(tmp_path / "a.zip", files)
    storage = ZipStorage(path)
    last = int(np.argmax(storage.index.column("offset")))
    os.truncate(path, int(storage.index.column("offset")[last]) + 50)
    bad = storage.read(np.arange(12))[last]
    assert "the file ends" in bad.cause
    os.unlink(path)
    elsewhere = pickle.loads(pickle.dumps(storage))
    assert "No such file" in elsewhere.read(np.array([0]))[0].cause


def test_a_second_start_looks_again_only_if_a_file_changed(tmp_path, monkeypatch):
    path = put(tmp_path / "a.zip", images(6))
    first = ZipStorage(path).fingerprint()
    monkeypatch.setattr("penstock.datasets.storages.zip.list_members", None)
    assert ZipStorage(path).fingerprint() == first
    put(tmp_path / "a.zip", images(7))
    with pytest.raises(TypeError):
        len(ZipStorage(path))


def test_a_flipped_bit_anywhere_is_an_error_or_spoils_one_member(tmp_path):
    files = images(12)
    path = put(tmp_path / "a.zip", files, zipfile.ZIP_DEFLATED)
    content = open(path, "rb").read()
    directory = content.index(b"PK\x01\x02")
    wanted = dict(expected(files))
    bad = refused = 0
    for at in flipped(path, rng.integers(0, len(content), 300), rng):
        records = unless_refused(lambda: ZipStorage(path, labels=None).read(np.arange(12)))
        if records is None:
            refused += 1
            continue
        broken = [r for r in records if isinstance(r, BadRecord)]
        bad += bool(broken)
        assert len(broken) <= 1
        if at < directory:
            good = (r for r in records if not isinstance(r, BadRecord))
            assert all(r.fields["image"] == wanted[r.key]["image"] for r in good)
    assert bad > 30
    assert refused > 5


def test_contract_of_the_writer(tmp_path):
    check_writer(lambda: ZipWriter(part_records=5), tmp_path)


def test_others_see_image_files_in_class_folders(tmp_path):
    keys = ["dog/a.jpg", "b", "../x.png", "c/d.PNG", "a:b", "b.jpg", ".hidden.jpg", ""]
    images = [b"\xff\xd8 %d" % i for i in range(len(keys))]
    fields = {key: {"image": image, "label": i % 2, "boxes": np.ones((i, 4))}
              for i, (key, image) in enumerate(zip(keys, images, strict=True))}  # fmt: skip
    source = ListedRecords(fields, ("dog", "a/cat"))
    write_storage(ZipWriter(), tmp_path / "z", source)
    [file] = (tmp_path / "z").iterdir()
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        names = ["dog/a.jpg", "a_cat/b.jpg", "dog/00000002.jpg", "a_cat/c/d.PNG",
                 "dog/00000004.jpg", "00000005/a_cat/b.jpg", "dog/00000006.jpg",
                 "a_cat/00000007.jpg"]  # fmt: skip
        assert [name for name in archive.namelist() if name[0] != "."] == names
        assert [archive.read(name) for name in names] == images
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    assert_equal_records(ZipStorage(str(tmp_path / "z")), source)
    files = ZipStorage(str(tmp_path / "z"), labels=None, endings=("jpg", "png"))
    assert len(files) == 8, "as an archive of files"


def test_damage_since_the_index_was_made_is_told_of_every_record(tmp_path):
    found = {str(i): {"image": b"image %d" % i, "n": i} for i in range(3)}
    write_storage(ZipWriter(), tmp_path / "z", ListedRecords(found))
    [file] = (tmp_path / "z").iterdir()
    storage = ZipStorage(str(tmp_path / "z"))
    assert len(storage) == 3
    whole = file.read_bytes()
    assert all(isinstance(record, Record) for record in read_all(storage))
    for old, new in ((b"image 1", b"imagE 1"), (b'"n": ["json", 1]', b'"n": ["json", 7]')):
        assert whole.count(old) == 1
        file.write_bytes(whole.replace(old, new))
        good, bad, _ = storage.read(np.arange(3))
        assert good.fields == found["0"]
        assert bad.cause.startswith("part-00000-of-00001.zip: its bytes are not those")
    file.write_bytes(whole.replace(b'"keys"', b'"kEys"'))
    with pytest.raises(ValueError, match=r"part-00000-of-00001.zip: damaged: .penstock/table"):
        len(ZipStorage(str(tmp_path / "z"), checksums=False))


def test_packed_archives_among_others_are_refused_with_the_setting_to_type(tmp_path):
    write_storage(ZipWriter(), tmp_path / "z", ListedRecords({"a": {"image": b"\xff\xd8", "n": 1}}))
    put(tmp_path / "z/other.zip", {"a/1.jpg": b"1"})
    with pytest.raises(ValueError, match=r"dataset.storage.labels=null"):
        len(ZipStorage(str(tmp_path / "z")))
    assert len(ZipStorage(str(tmp_path / "z"), labels=None)) == 2


def test_a_new_archive_is_scanned_and_no_other(tmp_path, monkeypatch):
    scanned = []
    scan = Zip.scan
    monkeypatch.setattr(
        Zip, "scan", lambda form, file, *more: scanned.append(file.path) or scan(form, file, *more)
    )
    for n in range(3):
        put(tmp_path / f"{n}.zip", {f"{kind}/{n}.jpg": b"%d" % n for kind in ("cat", "dog")})
    before = ZipStorage(str(tmp_path))
    assert len(before) == 6 and len(scanned) == 3
    put(tmp_path / "1.zip", {"cat/1.jpg": b"changed"})
    put(tmp_path / "3.zip", {"ant/9.jpg": b"9"})
    after = ZipStorage(str(tmp_path))
    assert keys(after) == ["ant/9.jpg", "cat/0.jpg", "cat/1.jpg", "cat/2.jpg", "dog/0.jpg",
                           "dog/2.jpg"]  # fmt: skip
    assert sorted(scanned[3:]) == [str(tmp_path / "1.zip"), str(tmp_path / "3.zip")]
    wanted = [b"9", b"0", b"changed", b"2", b"0", b"2"]
    assert [record.fields["image"] for record in read_all(after)] == wanted
    assert after.index.class_names == ("ant", "cat", "dog")


def test_a_flipped_bit_anywhere_is_an_error_or_a_bad_record(tmp_path):
    found = {str(i): {"image": b"image %d" % i, "n": i, "a": np.full(3, i)} for i in range(30)}
    source = ListedRecords(found)
    write_storage(ZipWriter(), tmp_path / "z", source)
    [file] = (tmp_path / "z").iterdir()
    whole = file.read_bytes()
    storage = ZipStorage(str(tmp_path / "z"))
    assert len(storage) == 30
    refused = bad = 0
    for _ in flipped(file, rng.integers(0, len(whole), 60), rng):
        for opened in (storage, None):
            records = unless_refused(
                lambda opened=opened: read_all(opened or ZipStorage(str(tmp_path / "z")))
            )
            refused += records is None
            for record in records or []:
                if isinstance(record, BadRecord):
                    bad += 1
                elif record.key in found:
                    assert record.fields["n"] == found[record.key]["n"]
    assert refused > 5 and bad > 5
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="damaged or no ZIP archive"):
            len(ZipStorage(str(tmp_path / "z")))


def test_all_formats_that_are_decoded_are_images_to_the_storage_and_the_writer(tmp_path):
    files = {"a/1.gif": b"GIF89a", "a/2.avif": b"\0\0\0 ftypavif", "b/3.jp2": b"jp2"}
    storage = ZipStorage(put(tmp_path / "a.zip", files | {"a/notes.txt": b""}))
    assert keys(storage) == sorted(files)
    marks = {"1": b"GIF89a", "2": b"\0\0\0 ftypavif", "3": b"\0\0\0\x0cjP  ",
             "4.j2k": b"\xff\x4f\xff\x51", "5": b"?"}  # fmt: skip
    source = ListedRecords({key: {"image": content} for key, content in marks.items()})
    write_storage(ZipWriter(), tmp_path / "packed", source)
    [archive] = (tmp_path / "packed").glob("*.zip")
    with zipfile.ZipFile(archive) as file:
        assert [n for n in file.namelist() if n[0] != "."] == [
            "1.gif",
            "2.avif",
            "3.jp2",
            "4.j2k",
            "5.bin",
        ]
    assert_equal_records(ZipStorage(str(tmp_path / "packed")), source)
