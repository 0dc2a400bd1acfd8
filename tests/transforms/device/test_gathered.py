"""Steps done while rows are gathered: what they make of the rows, with numba and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.transforms.device.rows import gathered as gathered_rows
from penstock.transforms.device.rows.changes import RowSteps
from tests.shares import in_turn
from tests.transforms.device.test_random_crop import crop
from tests.transforms.device.test_random_flip import flip

ROOT = Path(__file__).resolve().parents[3]
CHAINS = [
    lambda padding, p: [crop(padding=padding), flip(p=p)],
    lambda padding, p: [crop(padding=padding)],
    lambda padding, p: [flip(p=p)],
    lambda padding, p: [flip(p=p), crop(padding=padding)],
    lambda padding, p: [crop(padding=padding), flip(p=p), flip(p=0.5, step="again")],
    lambda padding, p: [crop(padding=padding, size=3), flip(p=p)],
    lambda padding, p: [crop("val", padding=padding), flip("val", p=p)],
    lambda padding, p: [crop("val", size=3)],
    lambda padding, p: [crop(padding=2, padding_mode="reflect"), flip(p=p)],
]


@pytest.fixture(scope="module")
def compiled():
    found = gathered_rows.compiled_rows()
    assert found is not None, "pip install '.[test]' brings numba"
    return found


@st.composite
def arrays(draw):
    count = draw(st.integers(1, 9))
    sides = draw(st.tuples(st.integers(3, 12), st.integers(3, 12)))
    last = draw(st.sampled_from([(), (1,), (3,), (4,), (2, 3)]))
    dtype = draw(st.sampled_from(["u1", "u1", "u1", "<i8", ">i2", "<f4", "?"]))
    if dtype == "<f4" and len(last) == 1:  # channels come first in those; see below
        last = ()
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    values = rng.integers(0, 100, (count, *sides, *last))
    array = (values > 50 if dtype == "?" else values).astype(dtype)
    if draw(st.booleans()):
        array.flags.writeable = False
    return np.asfortranarray(array) if draw(st.integers(0, 9)) == 0 else array


def one_by_one(chain, array, rows, positions, epoch):
    """The steps in turn over the rows as a batch, which other tests know."""
    native = array[rows].astype(array.dtype.newbyteorder("="))
    batch = {
        "mask": torch.from_numpy(native),
        "position": torch.from_numpy(positions.copy()),
        "epoch": torch.full((len(rows),), epoch),
    }
    for step in chain:
        batch = step(batch)
    return batch["mask"].numpy()


@pytest.mark.parametrize("with_numba", [True, False])
@settings(deadline=None, max_examples=150)
@given(
    array=arrays(),
    count=st.integers(1, 200),
    chain=st.sampled_from(CHAINS),
    padding=st.sampled_from([0, 1, 2, 4, 15]),
    p=st.sampled_from([0.0, 0.3, 1.0]),
    epoch=st.sampled_from([0, 1, 2**40]),
    allocated=st.booleans(),
    piece=st.sampled_from([1, 500, 8 << 20]),
    seed=st.integers(0, 99),
)
def test_they_are_what_the_steps_make_of_the_rows(
    compiled, with_numba, array, count, chain, padding, p, epoch, allocated, piece, seed
):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(array), count)
    positions = rng.integers(0, 2**62, 2 * count)[::2]  # not in one piece
    steps = chain(padding, p)
    before = array.copy()

    def memory(size_bytes):
        return np.full(size_bytes, 77, np.uint8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_rows, "_PIECE_BYTES", piece)
        patch.setattr(gathered_rows, "compiled_rows", lambda: compiled if with_numba else None)
        found = RowSteps(steps).gathered(
            positions, epoch, array, rows, memory if allocated else None
        )
    expected = one_by_one(steps, array, rows, positions, epoch)
    assert found.shape == expected.shape and found.dtype.newbyteorder("=") == expected.dtype
    assert np.array_equal(found, expected)
    assert np.array_equal(array, before)


def test_a_compiled_chain_is_used_and_writes_to_the_memory_that_it_is_given(compiled):
    array = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)
    rows, positions = np.array([4, 0, 4]), np.arange(3)
    memory = np.zeros(3 * 192, np.uint8)
    steps = RowSteps([crop(padding=2), flip()])
    calls = []

    class Spy:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(compiled, name)

    spy = Spy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered_rows, "compiled_rows", lambda: spy)
        found = steps.gathered(positions, 0, array, rows, lambda size: memory[:size])
    assert "gather_shifted" in calls
    assert np.shares_memory(found, memory) and np.array_equal(found.reshape(-1), memory)


def test_without_numba_nothing_is_compiled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "numba", None)
        patch.delitem(
            __import__("sys").modules, "penstock.transforms.device.rows.compiled", raising=False
        )
        import penstock.transforms.device.rows as package

        patch.delattr(package, "compiled", raising=False)
        assert gathered_rows.compiled_rows.__wrapped__() is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_shift_beyond_the_whole_image_leaves_its_neighbours_alone(channels):
    array = np.random.default_rng(0).integers(1, 256, (7, 4, 5, channels), np.uint8)
    rows, positions = np.arange(500) % 7, np.arange(500)
    steps = [crop(padding=9), flip()]
    found = RowSteps(steps).gathered(positions, 3, array, rows, None)
    assert np.array_equal(found, one_by_one(steps, array, rows, positions, 3))
    assert 50 < (found != 0).any((1, 2, 3)).sum() < 450


def test_floats_with_channels_have_them_first():
    array = np.random.default_rng(0).random((4, 3, 8, 9), np.float32)
    rows, positions = np.array([3, 0, 3, 1]), np.arange(4)
    steps = [crop(padding=2), flip()]
    found = RowSteps(steps).gathered(positions, 0, array, rows, None)
    assert np.array_equal(found, one_by_one(steps, array, rows, positions, 0))
    assert found.shape == (4, 3, 8, 9) and not np.array_equal(found, array[rows])


@pytest.mark.parametrize("damage", in_turn(["cut", "garbage", "read-only"], every=3))
def test_what_was_compiled_and_kept_may_be_damaged_or_nowhere(tmp_path, damage):
    files = [
        "__init__.py",
        "transforms/__init__.py",
        "transforms/device/__init__.py",
        "transforms/device/rows/__init__.py",
        "transforms/device/rows/compiled.py",
        "transforms/device/rows/gathered.py",
    ]
    package = tmp_path / "penstock"
    for name in files:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes((ROOT / name).read_bytes())
    code = "from penstock.transforms.device.rows.gathered import compiled_rows as compiled; "
    code += "print(compiled().scatter.signatures)"
    cache = package / "transforms/device/rows/__pycache__"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    if damage == "read-only":
        cache.write_bytes(b"no folder")
        environment |= {
            "NUMBA_CACHE_DIR": "",
            "HOME": "/proc/nowhere",
            "XDG_CACHE_HOME": "/proc/no",
        }

    def run():
        done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path,
                              capture_output=True, text=True, timeout=250)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Array(uint8" in done.stdout

    run()
    kept = [*cache.glob("*.nbc"), *cache.glob("*.nbi")] if cache.is_dir() else []
    assert bool(kept) == (damage != "read-only")
    for file in kept:
        content = file.read_bytes()
        file.write_bytes(content[:100] if damage == "cut" else b"x" * len(content))
    run()


def test_a_class_that_changes_rows_in_its_own_way_is_not_gathered():
    class Twice(type(flip())):
        def row_change(self, batch):
            return None

    own = Twice(seed=7, split="train", step="flip", p=1.0)
    array = np.arange(2 * 4 * 4 * 3, dtype=np.uint8).reshape(2, 4, 4, 3)
    found = RowSteps([own]).gathered(np.arange(2), 0, array, np.array([1, 0]), None)
    assert np.array_equal(found, array[[1, 0]])


def test_what_no_image_is_is_refused_as_by_the_steps():
    labels = np.arange(6).reshape(3, 2)
    with pytest.raises((ValueError, IndexError)):
        RowSteps([crop(padding=1)]).gathered(np.arange(3), 0, labels, np.arange(3), None)
