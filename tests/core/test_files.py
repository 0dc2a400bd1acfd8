"""Files are whole or absent; the error of a full disk names the file."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from functools import partial

import pytest
import torch

from penstock.core.files import (
    locked,
    machine_folder,
    whole_file,
    whole_folder,
    write_whole,
    writing,
)
from penstock.core.user_errors import is_explained, nearest_path
from penstock.datasets.records.table import cached_index
from penstock.pipeline.training.checkpoint import CheckpointFolder


@pytest.mark.parametrize(
    "write", [lambda file: file.write(b"1"), partial(torch.save, torch.zeros(10**5))]
)
def test_the_error_of_a_full_disk_names_the_file(write):
    said = r"run/last\.pt cannot be written: No space left on device; free some space"
    with pytest.raises(ValueError, match=said) as raised:
        with writing("run/last.pt"), open("/dev/full", "wb") as file:
            write(file)
    assert is_explained(raised.value)


def test_a_failed_checkpoint_leaves_the_previous_one_and_nothing_else(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, best=True)

    def full(source, target):
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left"):
        folder.save({"step": 2}, best=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"]
    assert folder.load_newest()[1]["step"] == 1


def test_the_error_of_a_full_cache_names_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build():
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(ValueError, match=r"computed cannot be written: Disk quota.*XDG_CACHE_HOME"):
        cached_index({"kind": "x"}, build=build, is_current=lambda index: True)
    assert [path.suffix for path in (tmp_path / "penstock" / "computed").iterdir()] == [".lock"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_file_keeps_its_content_until_the_new_one_is_whole(tmp_path, alone):
    path = tmp_path / "x"
    write_whole(path, "old", alone=alone)
    with pytest.raises(ZeroDivisionError), whole_file(path, alone=alone) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "old"
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["x"] and path.read_text() == "old"
    before = os.umask(0o027)
    try:
        write_whole(path, lambda file: file.write(b"new"), alone=alone)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640, "as any other new file"


def test_a_folder_appears_when_it_is_whole_and_replaces_no_other(tmp_path):
    with whole_folder(tmp_path / "x") as folder:
        (folder / "a").write_text("a")
        assert not (tmp_path / "x").exists()
    with pytest.raises(FileExistsError), whole_folder(tmp_path / "x") as folder:
        (folder / "b").write_text("b")
    assert os.listdir(tmp_path) == ["x"] and os.listdir(tmp_path / "x") == ["a"]


def test_a_lock_excludes_others_even_if_its_file_is_removed(tmp_path):
    inside, most = [], []

    def work():
        for _ in range(30):
            with locked(tmp_path / "lock"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)
                inside.pop()
                (tmp_path / "lock").unlink(missing_ok=True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(most) == {1}


def test_an_unwritable_cache_folder_is_replaced_by_a_temporary_one(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = machine_folder("computed")
    assert folder.is_dir() and folder.parent.parent == tmp_path
    assert folder.parent.stat().st_mode & 0o077 == 0
    assert "cannot be written; the cache is in" in caplog.text


def test_a_path_is_offered_only_if_its_name_is_close(tmp_path):
    (tmp_path / "tests").mkdir()
    assert nearest_path(f"{tmp_path}/pets") is None
    assert nearest_path(f"{tmp_path}/test") == f"{tmp_path}/tests"
