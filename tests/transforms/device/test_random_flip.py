"""Flips of a batch: as often as asked, alike on every path, and none in evaluation."""

import pytest
import torch

from penstock.transforms.device.random_flip import RandomFlip
from tests.transforms.device.drawn_rows import by_tensors
from tests.transforms.device.test_random_crop import batch


def flip(split="train", step="flip", seed=7, **options):
    return RandomFlip(seed=seed, split=split, step=step, **options)


def flipped(result, given):
    """Which rows are flipped, each being one or the other."""
    mirrored = given.flip(2)
    rows = (result == mirrored).flatten(1).all(1)
    assert torch.equal(result, torch.where(rows[:, None, None, None], mirrored, given))
    return rows


@pytest.mark.parametrize("channels", [1, 3, 4, 6])
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_both_paths_flip_the_same_rows(p, channels):
    given = batch(2000, channels=channels)
    before = given["image"].clone()
    fast, plain = flip(p=p)(given), by_tensors(flip(p=p))(given)
    assert torch.equal(fast["image"], plain["image"]) and torch.equal(given["image"], before)
    rows = flipped(fast["image"], given["image"])
    assert abs(rows.float().mean() - p) <= 5 * (p * (1 - p) / 2000) ** 0.5
    assert torch.equal(fast["mask"], torch.where(rows[:, None, None], given["mask"].flip(2),
                                                 given["mask"]))  # fmt: skip


def test_batches_may_be_cut_and_mixed_anyhow():
    whole = batch()
    expected = flip()(whole)["image"]
    for rows in (slice(3, 4), slice(5, 40), torch.arange(63, -1, -1)):
        part = {name: value[rows] for name, value in whole.items()}
        assert torch.equal(flip()(part)["image"], expected[rows])
    floats = {**whole, "image": whole["image"].permute(0, 3, 1, 2).float()}
    assert torch.equal(flip()(floats)["image"], expected.permute(0, 3, 1, 2).float())


def test_two_steps_flip_independently():
    given = batch(4000)
    rows = [flipped(flip(step=step)(given)["image"], given["image"]) for step in ("a", "b")]
    assert abs((rows[0] & rows[1]).float().mean() - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_evaluation_is_left_alone():
    given = batch()
    assert flip("val", p=1.0)(given) is given


def test_boxes_would_stay_where_they_are():
    with pytest.raises(ValueError, match=r"augment\.device\.flip: the batch has keypoints"):
        flip()({**batch(), "keypoints": []})
