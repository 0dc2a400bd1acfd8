"""Mixup and cutmix: pixels and labels in the same shares, and nothing from rows that are none."""

import pytest
import torch
from scipy import stats
from torch.nn import functional

from penstock.pipeline.collates.pad import PaddedCollate
from penstock.pipeline.models.reference import box_detector
from penstock.pipeline.tasks.classification import Classification
from penstock.pipeline.tasks.detection import Detection, true_boxes
from tests.contracts.collate import in_tensors
from tests.transforms.device.drawn_rows import PAIRS, as_floats, batch, part, step

PaddedCollate = in_tensors(PaddedCollate)

FIELDS = ("boxes", "box_labels", "box_id")
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


def test_shares_are_beta_distributed():
    given = {**flat(4000), "image": torch.zeros(4000, 3, 1, 1)}
    weight = step("mixup", alpha=0.3)(given)["label_weight"][::2].double().numpy()
    assert stats.kstest(weight, stats.beta(0.3, 0.3).cdf).pvalue > 1e-4
    large = {**given, "image": torch.zeros(1, 1, 1, 1).expand(4000, 1, 200, 200)}
    cut = step("cutmix")(part(large, slice(0, 400)))["label_weight"][::2]
    assert cut.min() < 0.2 and cut.max() > 0.97 and 0.5 < cut.mean() < 0.75


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


@BOTH
def test_padding_of_other_positions_is_no_neighbour(name):
    given = flat(4)
    given["position"] = torch.tensor([40, 0, 1, 2])
    given["valid"] = torch.tensor([True, False, False, False])
    result = step(name)(given)
    assert (result["label_weight"] == 1).all() and torch.equal(result["image"], given["image"])


@BOTH
def test_neighbours_of_another_epoch_are_none(name):
    given = {**flat(4), "epoch": torch.tensor([2, 3, 3, 3])}
    result = step(name)(given)
    assert (result["label_weight"][:2] == 1).all()
    assert torch.equal(result["image"][:2], given["image"][:2])


@BOTH
def test_pairs_are_mixed_as_often_as_asked(name):
    given = flat(2000)
    some = step(name, p=0.3)(given)["label_weight"] < 1
    assert torch.equal(some[::2], some[1::2])
    assert abs(some.float().mean() - 0.3) < 0.08
    assert (step(name, p=0.0)(given)["label_weight"] == 1).all()


def test_a_second_step_takes_what_the_first_left():
    given = flat(2000)
    first = step("mixup", p=0.5, called="a", alpha=1.0)(given)
    blended = first["label_weight"] < 1
    both = step("cutmix", called="b")(first)
    assert torch.equal(both["image"][blended], first["image"][blended])
    assert torch.equal(both["label_weight"][blended], first["label_weight"][blended])
    assert torch.equal(both["label_other"][blended], first["label_other"][blended])
    cut = step("cutmix", called="b")(given)
    assert torch.equal(both["image"][~blended], cut["image"][~blended])
    assert 0.4 < blended.float().mean() < 0.6


@BOTH
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("valid", [True, False])
def test_the_loss_is_that_of_soft_targets(name, smoothing, valid):
    task = Classification(num_classes=10, label_smoothing=smoothing)
    mixed = step(name)(as_floats(batch()))
    if valid:
        mixed["valid"][3] = False
    else:
        del mixed["valid"]
    logits = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
    weight = mixed["label_weight"][:, None]
    soft = functional.one_hot(mixed["label"], 10) * weight
    soft = soft + functional.one_hot(mixed["label_other"], 10) * (1 - weight)
    rows = mixed["valid"] if valid else slice(None)
    expected = functional.cross_entropy(logits[rows], soft[rows], label_smoothing=smoothing)
    assert torch.allclose(task.losses(logits, mixed)["cross_entropy"], expected, atol=1e-5)


def test_a_class_of_no_weight_cannot_spoil_the_loss():
    task = Classification(num_classes=2)
    logits = torch.tensor([[0.0, -torch.inf]])
    rows = {"label": torch.tensor([0]), "label_other": torch.tensor([1]), "key": ["a"]}
    losses = task.losses(logits, {**rows, "label_weight": torch.ones(1)})
    assert losses["cross_entropy"] == 0


@BOTH
def test_groups_are_declared_for_training_alone(name):
    assert step(name).capabilities.group == 2
    assert step(name, "val").capabilities.group == 1


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("cutmix", {"boxes": []}, r"augment\.device\.step: the batch has boxes, for which"),
        (
            "mixup",
            {"boxes": []},
            r"has boxes and alpha is 1, .* set augment\.device\.step\.alpha=32",
        ),
        ("mixup", {"keypoints": []}, "the batch has keypoints"),
        ("mixup", {"mask": []}, "the batch has mask"),
        ("cutmix", {"keypoints": []}, "the batch has keypoints"),
        ("cutmix", {"image": [torch.zeros(3, 8, 8)] * 32}, "images are a list"),
        ("mixup", {"label": torch.zeros(32)}, "needs a label for each image"),
        ("cutmix", {"label": None}, "the batch has none"),
    ],
)
def test_what_cannot_be_mixed_is_said(name, changes, said):
    with pytest.raises(ValueError, match=said):
        step(name)({**batch(), **changes})


def boxed(counts, **options):
    """A batch whose rows have so many boxes, numbered through."""
    given = flat(len(counts), **options)
    ends = torch.tensor(counts).cumsum(0)
    numbers = [torch.arange(end - n, end) for n, end in zip(counts, ends, strict=True)]
    boxes = [number[:, None] + torch.tensor([0.0, 0, 5, 5]) for number in numbers]
    return {**given, "boxes": boxes, "box_labels": numbers, "box_id": [100 + n for n in numbers]}


def mixed_boxes(given, **options):
    return step("mixup", alpha=32.0, **options)(given)


def test_boxes_of_both_images_count():
    given = boxed([2, 0, 0, 0, 1, 3, 2, 1])
    given["valid"][7] = False
    result = mixed_boxes(given)
    weight = result["label_weight"]
    assert (weight[:6] < 1).all() and (weight[6:] == 1).all()
    assert ((weight[:6] > 0.2) & (weight[:6] < 0.8)).all(), "both are seen"
    expected = [[0, 1], [0, 1], [], [], [2, 3, 4, 5], [3, 4, 5, 2], [6, 7], [8]]
    assert [labels.tolist() for labels in result["box_labels"]] == expected
    for boxes, labels, ids in zip(
        result["boxes"], result["box_labels"], result["box_id"], strict=True
    ):
        assert boxes.shape == (len(labels), 4) and torch.equal(boxes[:, 0], labels.float())
        assert torch.equal(ids, labels + 100)
    assert [len(boxes) for boxes in given["boxes"]] == [2, 0, 0, 0, 1, 3, 2, 1]


def test_padded_boxes_are_those_of_lists():
    given = boxed([2, 0, 0, 4, 1, 3, 2, 1, 0, 0, 1, 2])
    given["valid"][3] = False
    samples = [
        {"key": str(row), **{name: given[name][row].numpy() for name in FIELDS}}
        for row in range(12)
    ]
    padded = {**given, **PaddedCollate(fields=dict.fromkeys(FIELDS, 1))(samples)}
    for options in ({}, {"p": 0.5}):
        lists, result = mixed_boxes(given, **options), mixed_boxes(padded, **options)
        assert torch.equal(lists["image"], result["image"])
        for name in FIELDS:
            assert result[name].shape[:2] == (12, 8)
            assert (result[f"{name}_mask"].sum(1) == result[f"{name}_lengths"]).all()
            for row in range(12):
                there = result[f"{name}_mask"][row]
                assert torch.equal(result[name][row][there], lists[name][row])
                assert not there[int(there.sum()) :].any(), "padding comes last"


def test_boxes_are_joined_however_the_batch_is_cut():
    given = boxed([2, 0, 1, 4, 1, 3, 2, 1])
    whole = mixed_boxes(given, p=0.6)
    assert 0 < (whole["label_weight"] < 1).sum() < 8
    for rows in (slice(0, 2), slice(2, 6), slice(6, 8)):
        some = mixed_boxes(part(given, rows), p=0.6)
        for name in FIELDS:
            assert all(map(torch.equal, some[name], whole[name][rows]))


def test_boxes_need_no_label():
    given = boxed([1, 2, 3, 4])
    del given["label"]
    result = mixed_boxes(given)
    assert (result["label_weight"] < 1).all() and "label_other" not in result
    again = mixed_boxes(result, called="another")
    assert torch.equal(again["image"], result["image"]), "what is mixed is left alone"
    assert all(map(torch.equal, again["boxes"], result["boxes"]))


def test_a_detector_trains_on_the_boxes_of_both():
    task = Detection(num_classes=30)
    given = mixed_boxes(boxed([2, 0, 1, 3]))
    torch.manual_seed(0)
    model = box_detector(num_classes=30)
    losses = task.losses(model(given), given)
    assert all(torch.isfinite(loss) and loss > 0 for loss in losses.values())
    assert [len(row["boxes"]) for row in true_boxes(given, 30)] == [2, 2, 4, 4]
