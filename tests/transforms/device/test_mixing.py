"""Mixup and cutmix: pixels and labels in the same shares, and nothing from rows that are none."""

import pytest
import torch
from torch.nn import functional

from penstock.pipeline.tasks.classification import Classification
from tests.transforms.device.drawn_rows import PAIRS, as_floats, batch, step

BOTH = pytest.mark.parametrize("name", PAIRS)


def flat(count=32, **options):
    """Each image of one colour: float [count, 3, 8, 8] of its row's number."""
    image = torch.arange(count).float()[:, None, None, None].expand(-1, 3, 8, 8).clone()
    return {**batch(count, **options), "image": image}


def test_mixup_blends_neighbours_by_one_weight():
    given = flat()
    result = step("mixup", alpha=1.0)(given)
    weight, rows = result["label_weight"], torch.arange(32)
    assert torch.equal(weight[::2], weight[1::2]) and (weight < 1).all()
    assert torch.equal(result["label"], given["label"])
    assert torch.equal(result["label_other"], given["label"][rows ^ 1])
    expected = rows * weight + (rows ^ 1) * (1 - weight)
    assert torch.allclose(result["image"], expected[:, None, None, None].expand(-1, 3, 8, 8))


def test_cutmix_exchanges_a_rectangle_of_the_share_that_labels_get():
    given = batch(64, 20, 30)
    given["mask"] = given["image"][..., 0].long()
    result = step("cutmix")(given)
    rows = torch.arange(64)
    other = given["image"][rows ^ 1]
    taken = (result["image"] == other).all(3) & (result["image"] != given["image"]).any(3)
    kept = (result["image"] == given["image"]).all(3)
    assert (taken | kept).all()
    for row in range(64):
        share = 1 - float(result["label_weight"][row])
        # A pixel of noise may be equal in both by chance, which is neither.
        assert abs(taken[row].sum() - share * 600) <= 2
        ys, xs = taken[row].nonzero().unbind(1)
        if len(ys):
            box = (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1)
            assert abs(box - taken[row].sum()) <= 2
    assert torch.equal(result["mask"], result["image"][..., 0].long())
    mixed = result["label_weight"] < 1
    assert torch.equal(result["label_other"][mixed], given["label"][rows ^ 1][mixed])
    assert step("cutmix").group == 2


@BOTH
def test_a_row_without_a_valid_neighbour_stays_alone(name):
    given = flat(12)
    given["image"][5] = torch.nan
    given["valid"][5] = False
    rows = torch.tensor([0, 1, 3, 4, 5, 6, 7, 8, 10, 11])  # 2 and 9 were skipped
    some = {key: value[rows] for key, value in given.items() if key != "key"}
    result = step(name)(some)
    alone = torch.tensor([2, 3, 4, 7])  # positions 3, 4, 5 and 8
    assert (result["label_weight"][alone] == 1).all()
    assert torch.equal(result["label_other"][alone], some["label"][alone])
    assert torch.equal(result["image"][alone].nan_to_num(-1), some["image"][alone].nan_to_num(-1))
    paired = torch.tensor([0, 1, 5, 6, 8, 9])
    whole = step(name)(flat(12))
    assert torch.equal(result["image"][paired], whole["image"][rows[paired]])
    assert not result["image"][paired].isnan().any()


def test_a_second_step_takes_what_the_first_left():
    given = flat(2000)
    first = step("mixup", p=0.5, called="a", alpha=1.0)(given)
    blended = first["label_weight"] < 1
    both, cut = step("cutmix", called="b")(first), step("cutmix", called="b")(given)
    for field in ("image", "label_weight", "label_other"):
        assert torch.equal(both[field][blended], first[field][blended])
    assert torch.equal(both["image"][~blended], cut["image"][~blended])
    assert 0.4 < blended.float().mean() < 0.6


@BOTH
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_soft_targets(name, smoothing):
    task = Classification(num_classes=10, label_smoothing=smoothing)
    mixed = step(name)(as_floats(batch()))
    mixed["valid"][3] = False
    logits = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    weight = mixed["label_weight"][:, None]
    soft = functional.one_hot(mixed["label"], 10) * weight
    soft = soft + functional.one_hot(mixed["label_other"], 10) * (1 - weight)
    rows = mixed["valid"]
    expected = functional.cross_entropy(logits[rows], soft[rows], label_smoothing=smoothing)
    assert torch.allclose(task.losses(logits, mixed)["cross_entropy"], expected, atol=1e-5)


@pytest.mark.parametrize("label", [torch.zeros(32), None])
def test_a_batch_without_a_label_for_each_image_is_refused(label):
    with pytest.raises(ValueError, match="expected a label for each image"):
        step("mixup")({**batch(), "label": label})
