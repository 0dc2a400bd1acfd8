"""What packing refuses, what it replaces, what it leaves out, and what a check finds later."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import tempfile
import time
from dataclasses import replace

import numpy as np
import pytest

from penstock.core.user_errors import ExplainedError
from penstock.datasets.storages.lmdb import LmdbStorage
from penstock.datasets.writing import make_plan
from penstock.pipeline.config.components import register_components
from penstock.pipeline.packing import run as split
from penstock.pipeline.packing.report import summary_lines
from penstock.pipeline.packing.run import SendPart, WritePart, pack
from penstock.pipeline.packing.verify import check
from tests.contracts.packing import assert_equal
from tests.contracts.records import ListedRecords, records_of
from tests.contracts.storage import contents
from tests.pipeline.packing.killing import packing_of
from tests.pipeline.packing.packings import KINDS, packing


@pytest.fixture(autouse=True)
def storages():
    register_components()


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, monkeypatch):
    for name, workers, few in (("a", 0, 4), ("b", 3, 4), ("c", 2, 0), ("d", 2, 99)):
        monkeypatch.setattr(split, "_FEW_PARTS", few)
        given = packing(tmp_path / name, num_workers=workers, for_few_parts=name == "b")
        assert pack(given) == 0
        assert contents(tmp_path / "a") == contents(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]
    for name, count in (("train", 23), ("val", 7)):
        storage = LmdbStorage(str(tmp_path / "b" / name))
        assert_equal(storage, records_of(KINDS, count).records)


def with_bad(*positions):
    listed = records_of(KINDS)
    for key in np.array(list(listed.records))[list(positions)].tolist():
        listed.records[key] = None
    return listed


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bad_records_stop_it_or_are_left_out_and_listed(tmp_path, capsys, num_workers):
    sources = {"train": with_bad(3, 12, 13, 14), "val": records_of(KINDS, 7)}
    with pytest.raises(ValueError, match=r"listed records: .* is gone; .*pack.on_error=skip"):
        pack(packing(tmp_path / "a", sources, num_workers=num_workers))
    given = packing(tmp_path / "a", sources, skip_bad=True, num_workers=num_workers)
    assert pack(given) == 0
    said = capsys.readouterr().out
    assert "  unreadable: 4" in said and "bad_records.csv" in said
    lines = (tmp_path / "a/bad_records.csv").read_text().splitlines()
    assert lines[0] == "split,key,cause" and len(lines) == 5 and "is gone" in lines[1]
    assert_equal(LmdbStorage(str(tmp_path / "a/train")), sources["train"].records)
    assert check(tmp_path / "a", num_workers=0, imports=[]) == 0


def test_what_was_begun_with_other_settings_is_not_gone_on_with(tmp_path):
    given = packing(tmp_path / "a", {"train": with_bad(20)})
    with pytest.raises(ValueError, match="is gone"):
        pack(given)
    other = replace(given, recipe={**given.recipe, "pack.quality": 90})
    cause = r"begun with pack.quality None, now it is 90; .* rm -r .*/.a.packing"
    with pytest.raises(ValueError, match=cause):
        pack(other)
    shutil.rmtree(tmp_path / ".a.packing")
    assert pack(replace(other, sources={"train": records_of(KINDS)})) == 0


def test_overwriting_replaces_what_pack_made_and_nothing_else(tmp_path):
    first = packing(tmp_path / "a")
    assert pack(first) == 0
    with pytest.raises(ValueError, match=r"exists already; .*pack.overwrite=true"):
        pack(first)
    again = packing(tmp_path / "a", {"train": records_of(KINDS, 11)}, overwrite=True)
    assert pack(again) == 0
    assert sorted(os.listdir(tmp_path)) == ["a"] and not (tmp_path / "a/val").exists()
    assert_equal(LmdbStorage(str(tmp_path / "a/train")), records_of(KINDS, 11).records)
    for change in (
        "mine.txt",
        "train/mine.txt",
        "train/part-00000-of-00003.lmdb",
        "train/.packed.npz",
    ):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        with open(tmp_path / "b" / change, "ab") as file:
            file.write(b"mine")
        before = contents(tmp_path / "b")
        with pytest.raises(ValueError, match=r"changed since pack made it|damaged or no index"):
            pack(packing(tmp_path / "b", overwrite=True))
        assert contents(tmp_path / "b") == before
        shutil.rmtree(tmp_path / "b")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.lmdb").write_text("precious")
    with pytest.raises(ValueError, match="was not made by pack"):
        pack(packing(tmp_path / "mine", overwrite=True))
    assert sorted(os.listdir(tmp_path)) == ["a", "mine"]


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file or a link"):
        pack(packing(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"file/a: (Not a directory|File exists)"):
        pack(packing(tmp_path / "file/a"))
    (tmp_path / "empty").mkdir()
    assert pack(packing(tmp_path / "empty")) == 0
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o555)
        with pytest.raises(ValueError, match="closed/a: Permission denied"):
            pack(packing(tmp_path / "closed/a"))


@pytest.mark.parametrize(("most", "num_workers"), [(20_000, 0), (60_000, 0), (60_000, 2)])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path, most, num_workers):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        with pytest.raises(ExplainedError, match="free some space and repeat") as error:
            pack(packing(tmp_path / "a", num_workers=num_workers))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "a").exists()
    assert pack(packing(tmp_path / "a", num_workers=num_workers)) == 0
    assert pack(packing(tmp_path / "b")) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_full_file_system(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(mounted)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with pytest.raises(ExplainedError, match="free some space and repeat the command"):
            pack(packing(mounted / "a"))
        with pytest.raises(ValueError, match="is a mount point"):
            pack(packing(mounted))
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_a_check_names_what_was_damaged(tmp_path, capsys):
    assert pack(packing(tmp_path / "a")) == 0
    assert check(tmp_path / "a", num_workers=2, imports=[]) == 0
    assert check(tmp_path / "a/val", num_workers=2, imports=[]) == 0
    capsys.readouterr()
    index = LmdbStorage(str(tmp_path / "a/train")).index
    for row in (3, 18):
        data = tmp_path / f"a/train/part-{row // 5:05d}-of-00005.lmdb"
        with open(data, "r+b") as file:
            file.seek(int(index.column("offset")[row]))
            before = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([before[0] ^ 1]))
    assert check(tmp_path / "a", num_workers=0, imports=[]) == 1
    lines = capsys.readouterr().out.splitlines()
    keys = index.keys(np.array([3, 18]))
    changed = "is not what was written (size or checksum)"
    files = [f"train: file part-0000{n}-of-00005.lmdb {changed}" for n in (0, 3)]
    assert lines[:2] == files
    assert [line.split(": ")[1] for line in lines[2:4]] == [repr(key) for key in keys]
    assert lines[4:] == ["val: 7 records, all as they were packed"]
    data.unlink()
    assert check(tmp_path / "a", num_workers=0, imports=[]) == 1
    assert f"train: file {data.name} is gone" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    with pytest.raises(ValueError, match="was not made by pack"):
        check(tmp_path / "other", num_workers=0, imports=[])


FORMS = ["arrow", "hdf5", "image_folder", "lmdb", "memmap", "npy_shards", "parquet", "pt_shards",
         "webdataset", "zip"]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_check_finds_a_flipped_byte_in_every_file(tmp_path, capsys, form):
    from penstock.core.registry import components

    assert {writer.name for writer in components("writer")} >= {*FORMS}
    writer = next(each.target for each in components("writer") if each.name == form)()
    sources = {"train": records_of(KINDS - {"shapes", "keys", "values"}, 9)}
    if "files" in writer.cannot_hold:
        pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
        records = {f"{row}": {"image": pixels + row, "label": row % 2} for row in range(9)}
        sources = {"train": ListedRecords(records, ("cat", "dog"))}
    folder = tmp_path / "packed"
    assert pack(packing_of(folder, writer, form, sources)) == 0
    assert check(folder, num_workers=0, imports=[]) == 0
    rng = np.random.default_rng(0)
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size]
    names = {file.name for file in files}
    assert {".packed.json", ".packed.npz"} < names
    for file in files:
        content = file.read_bytes()
        thorough = form == "memmap" and file.name.startswith(".packed")
        for place in rng.integers(0, len(content), 40 if thorough else 2).tolist():
            changed = bytearray(content)
            changed[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            try:
                found = check(folder, num_workers=0, imports=[])
            except ValueError as error:
                assert file.name == ".packed.json", error
            else:
                assert found == 1, (file, place)
                assert file.name in capsys.readouterr().out
        file.write_bytes(content)
    assert check(folder, num_workers=0, imports=[]) == 0


def test_keys_that_stand_twice_are_refused(tmp_path):
    class Twice(ListedRecords):
        def __init__(self):
            super().__init__({"a": {"image": b"1"}, "b": {"image": b"2"}})
            self.index = self.index.replaced(keys=["a", "a"])

    with pytest.raises(ValueError, match="'a' is the key of the records 0 and 1"):
        pack(packing(tmp_path / "a", {"train": Twice()}))
    assert os.listdir(tmp_path) == []


def test_sizes_are_those_of_files_and_what_was_not_decoded_is_said(tmp_path):
    from penstock.datasets.writing import write_storage
    from tests.pipeline.packing.packings import small_writer

    records = {str(i): {"image": bytes(size), "label": 1} for i, size in enumerate((0, 73, 82))}
    summaries = write_storage(small_writer(), tmp_path / "a", ListedRecords(records, ["a", "b"]))
    lines = summary_lines(summaries, ("a", "b"))
    assert "sizes: 0 bytes to 82 bytes, median 73 bytes, 155 bytes in all" in lines
    assert lines[-1] == "unreadable: none"


def test_how_classes_are_balanced_is_said(tmp_path):
    from penstock.datasets.writing import write_storage
    from tests.pipeline.packing.packings import small_writer

    names = [f"class {i}" for i in range(30)]
    records = {str(i): {"image": bytes(i), "label": int(i**0.5)} for i in range(200)}
    source = ListedRecords(records, names)
    lines = summary_lines(write_storage(small_writer(50), tmp_path / "a", source), tuple(names))
    said = "classes: 15, from 1 to 27 records, 15 without any record (not balanced, 27.0 : 1)"
    assert lines[0] == said


class _Unread(ListedRecords):
    def __init__(self, *given):
        super().__init__(*given)
        self.parent = os.getpid()

    def read(self, indices):
        if os.getpid() != self.parent:
            raise OSError(errno.ESTALE, "Stale file handle", "/data/a.jpg")
        return super().read(indices)


def test_a_file_that_a_worker_cannot_read_is_named(tmp_path):
    records = _Unread({f"{n:02d}": {"image": b"."} for n in range(40)})
    with pytest.raises(ValueError, match=r"Stale file handle \(/data/a.jpg\)"):
        pack(packing(tmp_path / "p", {"train": records}, num_workers=2))


def test_what_is_sent_leaves_nothing_and_takes_away_what_a_kill_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name, age_s in (("old", 90_000), ("new", 60)):
        (tmp_path / f"penstock-pack-{name}").mkdir()
        then = time.time() - age_s
        os.utime(tmp_path / f"penstock-pack-{name}", (then, then))
    given, source = packing(tmp_path / "a"), records_of(KINDS)
    plan = make_plan(given.writer, source)
    send = SendPart(WritePart(given.writer, tmp_path / "none", plan, source, None, False))
    summary, contents = send(plan.parts[1])
    assert len(summary) == 5 and [len(each) for each in contents] == [
        size for size, _ in summary.marks.values()
    ]
    assert os.listdir(tmp_path) == ["penstock-pack-new"]
