"""Steps of a batch give the same result in the workers and in the loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import build_loader, compose, fit
from tests.laws.runs import WITH_TORCH, fed, overrides
from tests.laws.torch_components import Recording
from tests.shares import in_turn

COUNT = 70
ENGINES = {
    "inline": ["loader=inline"],
    "threads": ["loader=threads", "loader.num_workers=2"],
    "processes": ["loader=processes", "loader.num_workers=2"],
    "torch": ["loader=torch", "loader.num_workers=2"],
}
SMALL = ["augment=small", "augment.device.normalize=null", "dataset.val_fraction=0"]


@pytest.fixture(scope="module")
def storages(tmp_path_factory):
    """Write the same images as arrays and as shards; return the overrides by way of reading."""
    folder = tmp_path_factory.mktemp("steps")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (COUNT, 8, 9, 3), np.uint8), rng.integers(0, 4, COUNT)
    masks = rng.integers(0, 5, (COUNT, 8, 9))
    for split in ("train", "val"):
        (folder / "arrays" / split).mkdir(parents=True)
        for name, values in (("images", images), ("labels", labels), ("mask", masks)):
            np.save(folder / "arrays" / split / f"{name}.npy", values)
    (folder / "shards").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(COUNT), 3)):
        np.savez(folder / "shards" / f"{number}.npz", image=images[rows], label=labels[rows])
    memmap = ["dataset=memmap", f"dataset.storage.path={folder / 'arrays'}"]
    return {
        "gathered": memmap,
        "cached": [*memmap, "dataset/cache=ram"],
        "columns": ["dataset=npy_shards", f"dataset.storage.path={folder / 'shards'}"],
        "samples": [*memmap, "collate=pad"],
    }


def batches(given, device, *, split="train", skip=0, epochs=2, base=SMALL):
    """Return batches as a model gets them, from a loader built for `device`."""
    config = compose([*base, *given])
    with build_loader(config, split, device=device) as loader:
        if skip:
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": skip})
        given_to_model = fed(config, loader, split, device)
        return [batch for _ in range(epochs) for batch in given_to_model]


def assert_same(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert list(one) == list(other)
        for name, value in other.items():
            if isinstance(value, torch.Tensor):
                assert one[name].dtype == value.dtype and torch.equal(one[name], value), name
            else:
                assert one[name] == value, name


@pytest.mark.parametrize(
    ("engine", "storage"), in_turn([*ENGINES], ["gathered", "cached", "columns", "samples"])
)
def test_workers_give_the_batches_of_the_loop(storages, storage, engine):
    given = [*storages[storage], "loader.batch_size=16"]
    expected = batches([*given, "loader=inline"], None)
    assert_same(batches([*given, *ENGINES[engine]], "cpu"), expected)
    plain = batches([*given, "augment.device.crop=null", "augment.device.flip=null"], None)
    for as_stored, one in zip(plain, expected, strict=True):
        assert not torch.equal(as_stored["image"], one["image"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_workers_give_the_same_after_a_resume_and_in_evaluation(storages, engine):
    given = [*storages["gathered"], "loader.batch_size=8", *ENGINES[engine]]
    assert_same(batches(given, "cpu", skip=5), batches(given, None, skip=5))
    assert_same(batches(given, "cpu", split="val"), batches(given, None, split="val"))


def test_a_crop_in_evaluation_and_a_smaller_crop(storages):
    given = [*storages["gathered"], "loader=inline", "augment.device.crop.size=5"]
    for split in ("train", "val"):
        expected = batches(given, None, split=split)
        assert expected[0]["image"].shape[1:] == (5, 5, 3)
        assert_same(batches(given, "cpu", split=split), expected)


@pytest.mark.parametrize(("on_error", "engine"), in_turn(["replace", "skip"], [*ENGINES]))
def test_workers_give_the_same_with_a_damaged_record(photos, on_error, engine):
    steps = "augment.device={crop: {_target_: batch_transform/random_crop, padding: 3},"
    steps += "flip: {_target_: batch_transform/random_flip},"
    steps += "normalize: {_target_: batch_transform/normalize}}"
    given = [*overrides(photos), "augment.device=null", steps, f"loader.on_error={on_error}"]
    expected = batches([*given, "loader=inline"], None, base=[])
    assert expected[0]["image"].is_floating_point()
    assert_same(batches([*given, *ENGINES[engine]], "cpu", base=[]), expected)


def test_a_step_refuses_the_bytes_of_a_file(photos):
    given = [f"dataset.storage.path={photos}", "dataset=image_folder", "dataset/decode=raw",
             "augment=as_is", "collate=list", "loader.batch_size=4",
             "augment.device={flip: {_target_: batch_transform/random_flip}}"]  # fmt: skip
    for engine in ("inline", "threads", "processes"):
        with pytest.raises(ValueError, match=r"'image' is a file's .* bytes, expected pixels"):
            batches([*given, *ENGINES[engine]], "cpu", base=[])


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", None])
def test_workers_leave_all_steps_to_another_device(storages, device):
    given = [*storages["gathered"], "loader.batch_size=16"]
    config = compose([*SMALL, *given])
    with build_loader(config, "train", device=device) as loader:
        raw = next(iter(loader))["image"]
    with build_loader(config, "train") as loader:
        assert torch.equal(next(iter(loader))["image"], raw)
    assert_same(batches(given, device), batches([*given, *ENGINES["threads"]], "cpu"))


def test_steps_behind_one_that_is_not_by_rows_stay_behind_it(storages):
    grey = "augment.device={grey: {_target_: batch_transform/grayscale, p: 0.5},"
    grey += "flip: {_target_: batch_transform/random_flip}}"
    given = [*storages["gathered"], "augment.device=null", grey]
    expected = batches([*given, "loader=inline"], None, base=["augment=as_is", SMALL[2]])
    found = batches([*given, *ENGINES["threads"]], "cpu", base=["augment=as_is", SMALL[2]])
    assert_same(found, expected)


@pytest.mark.parametrize("overfit", ["null", "2"])
def test_validation_is_never_augmented(storages, monkeypatch, tmp_path, overfit):
    given = [*SMALL, *storages["gathered"], "loader=inline", "loader.batch_size=8", "seed=3"]
    run = [WITH_TORCH, "model=laws_recording", "trainer.max_steps=1", "trainer.device=cpu"]
    run += [f"outputs={tmp_path}", "trainer.progress=off", "optimizer=sgd"]
    monkeypatch.setattr(Recording, "seen", [])
    fit(compose([*given, *run, f"trainer.overfit_batches={overfit}"]))
    modes = [training for training, _ in Recording.seen]
    train, val = (Recording.seen[modes.index(training)][1] for training in (True, False))
    split = "val" if overfit == "null" else "train"
    with build_loader(compose(given), split) as loader:
        stored = next(iter(loader))["image"]
    with build_loader(compose(given), "train") as loader:
        unaugmented = next(iter(loader))["image"]
    assert torch.equal(val, stored)
    assert not torch.equal(train, unaugmented)
