"""A model gets the same row at a position with any number of ranks and any batch size."""

from __future__ import annotations

import pytest
import torch

from penstock import compose
from tests.laws.runs import INLINE, fed, loader_of, overrides

STEPS = (
    "augment.device={"
    "crop: {_target_: batch_transform/random_resized_crop, size: [18, 18]},"
    "color: {_target_: batch_transform/color_jitter, p: 0.8},"
    "grey: {_target_: batch_transform/grayscale, p: 0.3},"
    "mixup: {_target_: batch_transform/mixup, alpha: 1.0, p: 0.5},"
    "cutmix: {_target_: batch_transform/cutmix},"
    "normalize: {_target_: batch_transform/normalize},"
    "erase: {_target_: batch_transform/random_erasing, p: 0.5}}"
)

OTHERS = (
    {"batch_size": 8, "world_size": 2},
    {"batch_size": 12, "world_size": 3},
    {"batch_size": 2},
)


def rows(config, **changes):
    """Return the valid rows by epoch and position, as a model gets them."""
    found = {}
    world_size = changes.get("world_size", 1)
    for rank in range(world_size):
        with loader_of(config, rank=rank, **changes) as loader:
            batches = fed(config, loader)
            for batch in (batch for _ in range(2) for batch in batches):
                for row in batch["valid"].nonzero()[:, 0].tolist():
                    place = int(batch["epoch"][row]), int(batch["position"][row])
                    assert place not in found
                    found[place] = [
                        batch[name][row].clone()
                        for name in ("image", "label", "label_other", "label_weight")
                    ]
    return found


@pytest.mark.parametrize("tail", ["pad", False])
def test_ranks_and_batch_sizes_give_each_position_the_same(photos, tail):
    config = compose([*overrides(photos), "augment.device=null", STEPS])
    changes = {**INLINE, "drop_last": tail}
    expected = rows(config, **changes, batch_size=8)
    assert any(weight < 1 for *_, weight in expected.values())
    for other in OTHERS:
        found = rows(config, **{**changes, **other})
        assert found.keys() == expected.keys()
        for place, values in expected.items():
            assert all(torch.equal(a, b) for a, b in zip(found[place], values, strict=True))


def test_a_batch_size_that_cuts_pairs_is_refused(photos):
    config = compose([*overrides(photos), "augment.device=null", STEPS])
    with pytest.raises(ValueError, match="cuts groups of 2 positions apart; use a multiple of 2"):
        loader_of(config, **INLINE, batch_size=7)
    with loader_of(config, "val", **INLINE, batch_size=7) as loader:
        assert len(next(iter(loader))["label"]) > 0
