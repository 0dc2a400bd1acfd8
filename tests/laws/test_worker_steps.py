"""Steps that workers do on the CPU: the same batches as where the loop does them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.datasets.map_dataset import MapDataset
from penstock.datasets.records.subset import Subset
from penstock.datasets.storages.memmap import MemmapStorage
from penstock.pipeline.build import build, build_device_transforms, build_loader
from penstock.pipeline.device import DevicePrefetcher
from penstock.pipeline.training import job
from penstock.transforms.cpu.stack import build_stack
from penstock.transforms.decode.raw import RawDecoder
from penstock.transforms.device.rows.changes import RowSteps
from tests.laws.runs import overrides
from tests.shares import in_turn

COUNT = 70
ENGINES = {
    "inline": ["loader=inline"],
    "threads": ["loader=threads", "loader.num_workers=2"],
    "processes": ["loader=processes", "loader.num_workers=2", "loader.processes=2"],
    "torch": ["loader=torch", "loader.num_workers=2"],
}
SMALL = ["augment=small", "augment.device.normalize=null", "dataset.val_fraction=0"]


@pytest.fixture(scope="module")
def storages(tmp_path_factory):
    """The same images as arrays, which are gathered; as columns; and as samples."""
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
    """Batches as a model gets them; `device` is what loader and steps are told."""
    config = compose([*base, *given])
    with build_loader(config, split, device=device) as loader:
        if skip:
            loader.load_state_dict({**loader.state_dict(), "epoch": 0, "next_batch": skip})
        fed = DevicePrefetcher(loader, "cpu", build_device_transforms(config, split, device))
        return [batch for _ in range(epochs) for batch in fed]


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
def test_workers_give_what_the_loop_would(storages, storage, engine):
    given = [*storages[storage], "loader.batch_size=16"]
    expected = batches([*given, "loader=inline"], None)
    assert_same(batches([*given, *ENGINES[engine]], "cpu"), expected)
    plain = batches([*given, "augment.device.crop=null", "augment.device.flip=null"], None)
    for as_stored, one in zip(plain, expected, strict=True):
        assert not torch.equal(as_stored["image"], one["image"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_after_resuming_and_in_evaluation_too(storages, engine):
    given = [*storages["gathered"], "loader.batch_size=8", *ENGINES[engine]]
    assert_same(batches(given, "cpu", skip=5), batches(given, None, skip=5))
    assert_same(batches(given, "cpu", split="val"), batches(given, None, split="val"))


def test_a_crop_in_evaluation_and_one_that_is_no_shift(storages):
    given = [*storages["gathered"], "loader=inline", "augment.device.crop.size=5"]
    for split in ("train", "val"):
        expected = batches(given, None, split=split)
        assert expected[0]["image"].shape[1:] == (5, 5, 3)
        assert_same(batches(given, "cpu", split=split), expected)


@pytest.mark.parametrize(("on_error", "engine"), in_turn(["replace", "skip"], [*ENGINES]))
def test_photographs_of_which_one_is_damaged(photos, on_error, engine):
    steps = "augment.device={crop: {_target_: batch_transform/random_crop, padding: 3},"
    steps += "flip: {_target_: batch_transform/random_flip},"
    steps += "normalize: {_target_: batch_transform/normalize}}"
    given = [*overrides(photos), "augment.device=null", steps, f"loader.on_error={on_error}"]
    expected = batches([*given, "loader=inline"], None, base=[])
    assert expected[0]["image"].is_floating_point()
    assert_same(batches([*given, *ENGINES[engine]], "cpu", base=[]), expected)


def test_bytes_of_a_file_are_refused_in_one_line(photos):
    given = [f"dataset.storage.path={photos}", "dataset=image_folder", "dataset/decode=raw",
             "augment=as_is", "collate=list", "loader.batch_size=4",
             "augment.device={flip: {_target_: batch_transform/random_flip}}"]  # fmt: skip
    for engine in ("inline", "threads", "processes"):
        with pytest.raises(ValueError, match=r"'image' is a file's .* bytes, expected pixels"):
            batches([*given, *ENGINES[engine]], "cpu", base=[])


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps", None])
def test_elsewhere_the_device_does_all_steps(storages, device):
    config = compose([*SMALL, *storages["gathered"]])
    (steps,) = build_device_transforms(config, "train", device)
    assert isinstance(steps, RowSteps) and len(steps.steps) == 2
    with build_loader(config, "train", device=device) as loader:
        raw = next(iter(loader))["image"]
    with build_loader(config, "train") as loader:
        assert torch.equal(next(iter(loader))["image"], raw)


def test_steps_behind_one_that_is_not_by_rows_stay_behind_it(storages):
    grey = "augment.device={grey: {_target_: batch_transform/grayscale, p: 0.5},"
    grey += "flip: {_target_: batch_transform/random_flip}}"
    given = [*storages["gathered"], "augment.device=null", grey]
    config = compose([*SMALL[2:], "augment=as_is", *given])
    assert len(build_device_transforms(config, "train", "cpu")) == 2
    expected = batches([*given, "loader=inline"], None, base=["augment=as_is", SMALL[2]])
    found = batches([*given, *ENGINES["threads"]], "cpu", base=["augment=as_is", SMALL[2]])
    assert_same(found, expected)


@pytest.mark.parametrize("overfit", ["null", "2"])
def test_validation_is_never_augmented(storages, monkeypatch, tmp_path, overfit):
    class SeenError(Exception):
        pass

    def look(parts, *args, **kwargs):
        seen.extend([next(iter(parts.train))["image"], next(iter(parts.val))["image"]])
        raise SeenError

    seen = []
    monkeypatch.setattr(job, "fit", look)
    given = [*SMALL, *storages["gathered"], "loader=inline", "loader.batch_size=8", "seed=3"]
    config = compose([*given, f"trainer.overfit_batches={overfit}", f"outputs={tmp_path}"])
    with pytest.raises(SeenError):
        job.train(config)
    split = "val" if overfit == "null" else "train"
    with build_loader(compose(given), split) as loader:
        stored = next(iter(loader))["image"]
    with build_loader(compose(given), "train") as loader:
        unaugmented = next(iter(loader))["image"]
    train, val = seen
    assert torch.equal(val, stored)
    assert not torch.equal(train, unaugmented)


@pytest.mark.parametrize("subset", [False, True])
def test_a_storage_with_a_take_of_its_own_is_not_gathered_from(storages, subset):
    class Own(MemmapStorage):
        def take(self, indices, fields, *, allocate=None):
            return super().take(indices, fields, allocate=allocate)

    path = storages["gathered"][1].partition("=")[2] + "/train"
    for kind, gathered in ((MemmapStorage, True), (Own, False)):
        storage = kind(path)
        if subset:
            storage = Subset(storage, np.arange(20))
        dataset = MapDataset(
            storage, decode=RawDecoder(), transform=build_stack({}, build_step=build), seed=0
        )
        assert dataset.capabilities.gathers == gathered
        image = np.array([0, 5]), np.array([0, 1]), 0
        if gathered:
            zeros = dataset.fetch_columns(*image, gather=lambda *given: np.zeros(2))
            assert not zeros["image"].any() and zeros["label"].shape == (2,)
        assert dataset.fetch_columns(*image)["image"].any()
