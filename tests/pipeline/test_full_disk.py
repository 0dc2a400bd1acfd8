"""A disk that is full: a line that names the file, and nothing left in its way."""

from __future__ import annotations

import errno
import shutil

import pytest
import torch

from datasets.demo_folder import own_folder
from datasets.index_cache import cached_index
from pipeline.blame import is_explained
from pipeline.full_disk import writing
from pipeline.training.checkpoint import CheckpointFolder
from pipeline.training.run_folder import write_whole


def test_a_refused_write_is_told_with_the_files_name():
    with pytest.raises(ValueError) as told, writing("run/metrics.csv"), open("/dev/full", "w") as f:
        f.write("1")
    assert str(told.value) == (
        "run/metrics.csv cannot be written: No space left on device; free some space"
    )
    assert is_explained(told.value)


def test_it_is_found_behind_a_librarys_own_error():
    with pytest.raises(ValueError, match="written: No space left"):
        with writing("last.pt"), open("/dev/full", "wb") as file:
            torch.save({"weight": torch.zeros(10**5)}, file)


def test_other_errors_pass_as_they_are():
    for error in (ZeroDivisionError("a"), FileNotFoundError(errno.ENOENT, "no", "x"), KeyError(1)):
        with pytest.raises(type(error)) as raised, writing("x"):
            raise error
        assert raised.value is error


def test_a_file_of_a_run_is_named(tmp_path):
    (tmp_path / "config.yaml.tmp").symlink_to("/dev/full")
    with pytest.raises(ValueError, match=r"config.yaml cannot be written"):
        write_whole(tmp_path / "config.yaml", "seed: 0\n")
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_found_no_room_leaves_the_one_before_and_no_rest(tmp_path, monkeypatch):
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


def test_a_demo_set_without_room_is_named_and_cleared_away(tmp_path):
    def generate(folder):
        (folder / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ValueError, match=r"demo cannot be written: .* or set data_dir"):
        with own_folder(tmp_path / "demo", {"version": 1, "counts": {"train": 1}}, generate):
            pass
    assert [path.name for path in tmp_path.iterdir()] == [".penstock-demo.lock"]


def test_a_cache_folder_without_room_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def build(path):
        path.write_bytes(b"half")
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    with pytest.raises(ValueError, match=r"index cannot be written: Disk quota.*XDG_CACHE_HOME"):
        cached_index({"kind": "x"}, build=build, is_current=lambda index: True)
    assert [path.suffix for path in (tmp_path / "penstock" / "index").iterdir()] == [".lock"]
