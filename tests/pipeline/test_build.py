"""Objects from a config: what cannot be made is one line."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from penstock.core.registry import register
from penstock.datasets.demo.shapes import demo_path
from penstock.pipeline.build import build_device_transforms, build_sampler, open_storage
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.instantiate import build
from penstock.pipeline.loader.device.queue import DeviceQueue


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({"_target_": "torch.optim.AdamW", "lr": -1.0},
         r"^torch\.optim\.AdamW\(lr=-1\.0\) cannot be made: Invalid learning rate: -1"),
        ({"_target_": "albumentations.HorizontalFlip", "p": 2},
         r"^albumentations\.HorizontalFlip\(p=2\) cannot be made: .*Input .* equal to 1"),
    ],
)  # fmt: skip
def test_it_names_the_key_and_the_argument(node, said):
    with pytest.raises(ValueError, match=said):
        build(node, params=[torch.nn.Parameter(torch.ones(1))])


def test_nothing_to_train_on_is_said(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"x")
    config = compose([f"dataset.storage.path={tmp_path}", "dataset.val_fraction=1"])
    with pytest.raises(ValueError, match=r"no sample to train on; got dataset\.val_fraction=1"):
        build_loader(config)


def test_weights_are_a_column_of_the_data_or_a_file_by_key(tmp_path):
    rows = [(f"{row}.jpg", row % 2, float(row == 3), "text") for row in range(6)]
    names = ("image", "label", "importance", "word")
    path = tmp_path / "t.csv"  # the images are not there, and not read
    path.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)))
    typed = ["dataset=csv", f"dataset.storage.path={path}", "sampler=weighted"]
    typed += ["dataset.val_fraction=0", "loader=inline", "loader.batch_size=6"]
    config = compose([*typed, "sampler.weights=importance"])
    with build_loader(config) as loader:
        keys = loader.dataset.index.keys(np.arange(6))
        sampler = build_sampler(config, loader.dataset)
        assert sampler.indices(0, 0, 6).tolist() == [3] * 6
    for name in ("word", "nothing"):
        config = compose([*typed, f"sampler.weights={name}"])
        with pytest.raises(ValueError, match=f"no column of numbers '{name}' in the data"):
            build_loader(config)
    weights = tmp_path / "weights.csv"
    weights.write_text(
        "weight,key\n" + "".join(f"{key == keys[4]:d},{key}\n" for key in keys[::-1])
    )
    config = compose([*typed, f"sampler.weights={weights}"])
    with build_loader(config) as loader:
        assert build_sampler(config, loader.dataset).indices(0, 0, 6).tolist() == [4] * 6
    weights.write_text("weight\n1\n")
    with pytest.raises(ValueError, match="no column 'key'; columns: 'weight'"):
        build_loader(config)


@register("batch_transform", "told_all")
def told_all(batch, *, seed: int, split: str, step: str, factor: int = 1):
    """Says what it was told."""
    return {**batch, "told": (seed, split, step, factor)}


@pytest.mark.parametrize("dataset", ["image_folder", "eager"])
def test_the_validation_part_may_lie_elsewhere(data_dir, dataset):
    parts = demo_path("image_folder", data_dir)
    given = [f"dataset={dataset}", f"dataset.storage.path={parts / 'train'}", "loader=inline"]
    config = compose([*given, f"dataset.val_path={parts / 'val'}"])
    with build_loader(config, "train") as train, build_loader(config, "val") as val:
        assert (len(train.dataset), len(val.dataset)) == (3000, 600)
    assert len(open_storage(config, "val")) == 600
    with pytest.raises(ConfigError, match=r"dataset\.val_path: '/no/such' not found"):
        compose([*given, "dataset.val_path=/no/such"])


def test_a_step_of_a_batch_is_told_seed_split_and_its_name():
    config = compose(["seed=5", "+augment.device.mine._target_=batch_transform/told_all",
                      "+augment.device.mine.factor=3"])  # fmt: skip
    for split in ("train", "val"):
        step = build_device_transforms(config, split)[-1]
        assert step({}) == {"told": (5, split, "mine", 3)}
    with pytest.raises(ConfigError, match=r"augment\.device\.mine\.seed"):
        compose(["+augment.device.mine._target_=batch_transform/told_all",
                 "+augment.device.mine.seed=3"])  # fmt: skip


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 70), ("val", 30)):
        (tmp_path / split).mkdir()
        np.save(tmp_path / split / "images.npy", rng.integers(0, 256, (count, 8, 8, 3), np.uint8))
        np.save(tmp_path / split / "labels.npy", rng.integers(0, 4, count))
    return ["dataset=memmap", f"dataset.storage.path={tmp_path}", "augment=small",
            "augment.device.normalize=null", "loader=inline"]  # fmt: skip


def batches(overrides, split, *, epochs=1):
    config = compose(overrides)
    with build_loader(config, split) as loader:
        fed = DeviceQueue(loader, "cpu", build_device_transforms(config, split))
        return [batch for _ in range(epochs) for batch in fed]


def test_training_is_augmented_by_position_and_evaluation_is_not(arrays):
    def rows(given):
        return {
            (int(epoch), int(position)): image.tobytes()
            for batch in given
            for epoch, position, image in zip(
                batch["epoch"], batch["position"], batch["image"].numpy(), strict=True
            )
        }

    plain = [*arrays, "augment.device.crop=null", "augment.device.flip=null"]
    expected = rows(batches([*arrays, "loader.batch_size=14"], "train", epochs=2))
    original = rows(batches([*plain, "loader.batch_size=14"], "train", epochs=2))
    assert len(expected) == 140 == len(original)
    assert sum(expected[row] != original[row] for row in expected) > 130
    assert rows(batches([*arrays, "loader.batch_size=5"], "train", epochs=2)) == expected
    assert rows(batches([*arrays, "loader.batch_size=10", "seed=1"], "train")) != expected
    assert rows(batches(arrays, "val")) == rows(batches(plain, "val"))


def test_keypoints_change_places_as_the_data_names_them(data_dir):
    found = []
    for typed in ([], ["[[2,4]]"], ["[[right,left]]"], ["[]"]):
        swaps = [f"augment.keypoints.swaps={pairs}" for pairs in typed]
        config = compose(["task=keypoints", f"data_dir={data_dir}", "loader=inline", *swaps])
        with build_loader(config) as loader:
            points = next(iter(loader))["keypoints"].tolist()
            found.append((points, loader.state_dict()["pixels"]))
    assert found[0] == found[1] == found[2]
    assert found[3][0] != found[0][0] and found[3][1] != found[0][1]
    with pytest.raises(ValueError, match=r"no keypoint is called 'rihgt', the data has centre, "):
        build_loader({**config, "augment": {**config["augment"], "keypoints": {
            "_target_": "settings/keypoints", "swaps": [["rihgt", "left"]]}}})  # fmt: skip
