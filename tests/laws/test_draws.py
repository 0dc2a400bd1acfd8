"""Orders and draws are keyed by seed, epoch and position, and weights are those of each record."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from tests.laws.runs import fed

RECORDS = 60


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Equal images, so that only draws tell them apart, in a folder for each size."""
    root = tmp_path_factory.mktemp("arrays")
    for name, count, side in (("few", RECORDS, 24), ("many", 70_000, 1)):
        (root / name).mkdir()
        image = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
        np.save(root / name / "images.npy", np.broadcast_to(image, (count, side, side, 3)))
        np.save(root / name / "labels.npy", np.arange(count) % 3)
    return root


def epochs(path, *overrides, seed=0, count=2):
    """The rows of some epochs as a model gets them: ``index`` and ``image`` of each."""
    config = compose(
        [
            "imports=[tests.laws.components]", "dataset=memmap", f"dataset.storage.path={path}",
            "dataset.val_fraction=0", f"seed={seed}", "loader=inline", "loader.batch_size=12",
            "loader.drop_last=false", "augment=as_is", *overrides,
        ]
    )  # fmt: skip
    with build_loader(config, "train") as loader:
        for _ in range(count):
            batches = list(fed(config, loader))
            yield {name: torch.cat([b[name] for b in batches]) for name in ("index", "image")}


@pytest.mark.parametrize("size", ["few", "many"])
def test_each_seed_and_epoch_has_a_permutation_of_its_own(arrays, size):
    overrides = [f"loader.batch_size={20_000 if size == 'many' else 12}"]
    orders = [
        epoch["index"].numpy()
        for seed in (0, 1)
        for epoch in epochs(arrays / size, "sampler=random", *overrides, seed=seed)
    ]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(len(order)))
    for one, other in combinations(orders, 2):
        assert np.mean(one == other) < 0.1


@pytest.mark.parametrize(
    "step",
    [
        "train.draw={_target_: transform/laws_draw}",
        "device.color={_target_: batch_transform/color_jitter}",
    ],
)
def test_each_seed_epoch_and_position_has_draws_of_its_own(arrays, step):
    """All records are the same image, so that only draws make pixels differ."""
    images = []
    for seed in (0, 1):
        for epoch in epochs(arrays / "few", "sampler=sequential", f"augment.{step}", seed=seed):
            images += [image.numpy().tobytes() for image in epoch["image"]]
    assert len(images) == 4 * RECORDS
    assert len({*images}) == len(images)


def weights_file(folder, weights):
    lines = [f"{key},{weight}" for key, weight in enumerate(weights)]
    (folder / "weights.csv").write_text("\n".join(["key,weight", *lines, ""]))
    return f"sampler.weights={folder / 'weights.csv'}"


def test_a_record_is_drawn_by_its_own_weight(arrays, tmp_path):
    weights = [0] * RECORDS
    weights[7], weights[31], weights[59] = 1, 2, 5
    typed = ["sampler=weighted", "sampler.num_samples=4000", weights_file(tmp_path, weights)]
    [epoch] = epochs(arrays / "few", *typed, count=1)
    counts = Counter(epoch["index"].tolist())
    assert counts.keys() == {7, 31, 59}
    assert {key: count / 4000 for key, count in counts.items()} == pytest.approx(
        {7: 1 / 8, 31: 2 / 8, 59: 5 / 8}, abs=0.03
    )


def test_without_replacement_heavier_records_come_first_and_none_comes_twice(arrays, tmp_path):
    weights = [1000 if key % 2 else 1 for key in range(RECORDS)]
    weights[3] = 0
    typed = ["sampler=weighted", "sampler.replacement=false", weights_file(tmp_path, weights)]
    for epoch in epochs(arrays / "few", *typed):
        order = epoch["index"].tolist()
        assert sorted(order) == sorted({*range(RECORDS)} - {3})
        assert sum(key % 2 for key in order[:29]) >= 28


def test_shards_come_in_an_order_of_their_own_in_each_epoch(arrays):
    typed = ["sampler=shard_shuffle", "sampler.window=1", "sampler.shard_records=10"]
    orders = []
    for seed in (0, 1):
        for epoch in epochs(arrays / "few", *typed, seed=seed):
            records = epoch["index"].numpy().reshape(-1, 10)
            assert (records // 10 == records[:, :1] // 10).all()
            assert np.array_equal(np.sort(records, axis=None), np.arange(RECORDS))
            orders.append(tuple(records[:, 0] // 10))
    assert len({*orders}) == len(orders) == 4
