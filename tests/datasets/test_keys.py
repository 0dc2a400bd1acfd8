"""Keys that are made when somebody looks at them, and are then those of a list."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from penstock.core.sample import Keys


@pytest.mark.parametrize("pattern", ["{}", "row{:05}", "img_{:07d}.jpg", None])
def test_they_read_as_the_list_of_them(pattern):
    numbers = [7, 0, 123456, 7]
    expected = [(pattern or "{}.png").format(n) for n in numbers]
    keys = Keys(np.array(numbers), pattern) if pattern else Keys(list(expected))
    assert list(keys) == expected == [*keys] and len(keys) == 4
    assert keys == expected and expected == keys and keys == Keys(expected)
    assert keys != expected[:3] and keys != 7 and keys != [*expected[:3], "else"]
    assert [keys[at] for at in range(-4, 4)] == expected * 2
    assert keys[np.int64(2)] == keys[torch.tensor(2)] == expected[2]
    assert keys[1:] == expected[1:] and list(keys[::-2]) == expected[::-2]
    assert list(reversed(keys)) == expected[::-1]
    assert expected[2] in keys and "else" not in keys and 7 not in keys
    more = ["a"]
    assert keys + more == expected + more and more + keys == more + expected
    assert keys + keys == expected * 2
    assert repr(keys) == repr(expected) and ",".join(keys) == ",".join(expected)
    assert bool(keys) and not keys[:0] and keys[:0] == []
    assert np.array_equal(np.array(list(keys)), expected)
    for again in (pickle.loads(pickle.dumps(keys)), copy.copy(keys), copy.deepcopy(keys)):
        assert type(again) is Keys and again == expected
    with pytest.raises(IndexError):
        keys[4]
    with pytest.raises(TypeError):
        hash(keys)


def test_a_part_of_them_travels_alone():
    keys = Keys(np.arange(100_000), "{}")
    assert len(pickle.dumps(keys[10:20])) < 1000


def test_libraries_that_rebuild_sequences_leave_them_alone():
    keys = Keys(np.arange(3), "{}")
    assert not isinstance(keys, Sequence)
    from torch.utils.data._utils.pin_memory import pin_memory

    assert pin_memory({"key": keys}, device=None)["key"] is keys


@pytest.mark.parametrize(
    "engine",
    [
        ["loader=inline"],
        ["loader=threads", "loader.num_workers=2"],
        ["loader=processes", "loader.num_workers=1"],
        ["loader=torch", "loader.num_workers=1"],
    ],
)
def test_all_batches_have_them_however_they_are_made(tmp_path, engine):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "images.npy", rng.integers(0, 256, (20, 4, 4, 3), np.uint8))
    base = ["dataset=memmap", f"dataset.storage.path={tmp_path}", "dataset.val_fraction=0",
            "augment=as_is", "loader.batch_size=6"]  # fmt: skip
    found = {}
    for collate in ("stack", "pad"):
        with build_loader(compose([*base, *engine, f"collate={collate}"])) as loader:
            found[collate] = [batch["key"] for batch in loader]
    assert {type(keys) for made in found.values() for keys in made} == {Keys}
    assert found["stack"] == found["pad"]
    assert sorted(int(key) for keys in found["stack"] for key in keys)[-1] == 19
