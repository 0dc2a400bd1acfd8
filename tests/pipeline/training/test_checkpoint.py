"""Checkpoints of a run: whatever is there and whenever it is killed, one of them is whole."""

from __future__ import annotations

import os

import pytest

from penstock.pipeline.training.checkpoint import CheckpointFolder


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A folder, and the newest whole step in it after each change, where a kill may strike."""
    seen = []
    replace = os.replace

    def watch(source, target):
        replace(source, target)
        seen.append(CheckpointFolder(tmp_path).load_newest()[1]["step"])

    monkeypatch.setattr(os, "replace", watch)
    return tmp_path, seen


def test_a_kill_at_any_moment_leaves_a_whole_one(watched):
    path, seen = watched
    folder = CheckpointFolder(path)
    for step in (1, 2, 3):
        folder.save({"step": step}, best=False)
    assert seen == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("damage", [lambda data: data[:-50], lambda data: b""])
def test_a_damaged_last_one_never_takes_the_place_of_the_whole_one_before(watched, damage):
    path, seen = watched
    folder = CheckpointFolder(path)
    for step in (1, 2):
        folder.save({"step": step}, best=False)
    folder.last.write_bytes(damage(folder.last.read_bytes()))
    seen.clear()
    again = CheckpointFolder(path)  # the run goes on from step 1
    for step in (2, 3):
        again.save({"step": step}, best=False)
    assert seen == [2, 2, 3]
