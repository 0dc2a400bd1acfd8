"""Mean intersection over union beside the plainest counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.learning.metrics import MaskIou


@given(st.integers(0, 99), st.integers(2, 5))
def test_it_counts_pixels(seed, classes):
    rng = np.random.default_rng(seed)
    truth, guess = rng.integers(0, classes, (2, 3, 4, 5))
    truth[rng.uniform(size=truth.shape) < 0.2] = -100
    guess[guess == classes - 1] = 0  # a class may be missing from one or both
    metric = MaskIou(classes, class_names=list(map(str, range(classes))), by_class=True)
    for row in range(3):
        metric.update(torch.tensor(guess[row : row + 1]), torch.tensor(truth[row : row + 1]))
    computed = metric.compute()
    matrix, iou = computed.pop("confusion"), computed.pop("iou")
    found = {name: float(value) for name, value in computed.items()}
    counted = truth >= 0
    unions = [((truth == c) | (guess == c))[counted].sum() for c in range(classes)]
    common = [((truth == c) & (guess == c))[counted].sum() for c in range(classes)]
    shares = [a / b for a, b in zip(common, unions, strict=True) if b]
    assert found["miou"] == pytest.approx(np.mean(shares) if shares else 0)
    assert found["pixel_accuracy"] == pytest.approx((truth == guess).sum() / max(counted.sum(), 1))
    for c in range(classes):
        assert found[f"iou_class_{c}"] == pytest.approx(common[c] / unions[c] if unions[c] else 0)
        assert bool(iou[c].isnan()) == (unions[c] == 0) and matrix[c, c] == common[c]
        assert unions[c] == 0 or iou[c] == found[f"iou_class_{c}"]
        for d in range(classes):
            assert matrix[c, d] == ((truth == c) & (guess == d)).sum()
    metric.reset()
    assert float(metric.compute()["miou"]) == 0


def test_an_ignored_class_is_left_out():
    truth = torch.tensor([[[0, 1, -100, -100]]])
    guess = torch.tensor([[[0, 1, 2, 0]]])
    found = MaskIou(3, ignore=[2], class_names=["a", "b", "void"])
    found.update(guess, truth)
    assert found.compute()["miou"] == 1
    assert "iou_class_void" not in found.compute()
