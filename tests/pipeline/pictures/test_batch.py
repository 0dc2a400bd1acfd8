"""A batch drawn as the model gets it: normalised pixels have their own colours again."""

from __future__ import annotations

import numpy as np
import torch

from penstock.pipeline.pictures.batch import as_bytes, draw_batch, ends_of
from penstock.pipeline.pictures.fields import Classes
from penstock.pipeline.pictures.picture import PointNames
from penstock.transforms.device.normalize import Normalize


def batch_of(colour):
    image = torch.tensor(colour, dtype=torch.uint8).expand(3, 32, 32, 3)
    return {"image": image, "label": torch.arange(3), "valid": torch.ones(3, dtype=torch.bool)}


class Cuts:
    """A step of the user's that is told more than a row has."""

    def __call__(self, batch):
        return {**batch, "image": batch["image"] * batch["weights"]}


def test_colours_come_back():
    normalize = Normalize()
    batch = normalize(batch_of((10, 20, 200)))
    ends = ends_of(batch, [normalize])
    assert as_bytes(batch["image"], *ends)[0, 0, 0].tolist() == [10, 20, 200]
    sheet = draw_batch(batch, [normalize], {"label": Classes(("a", "b", "c"))}, PointNames())
    assert (sheet == (10, 20, 200)).all(-1).sum() >= 3 * 256 * 256


def test_what_cannot_be_undone_is_stretched():
    batch = {**batch_of((0, 0, 255)), "weights": [1, 1, 1]}
    batch["image"] = batch["image"].permute(0, 3, 1, 2).float() - 1000
    assert ends_of(batch, [Cuts()]) is None
    sheet = draw_batch(batch, [Cuts()], {}, PointNames())
    assert (sheet == (0, 0, 255)).all(-1).sum() >= 3 * 256 * 256
    assert sheet.dtype == np.uint8
