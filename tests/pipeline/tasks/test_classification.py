from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.learning.outputs import plain_columns
from penstock.pipeline.tasks.classification import Classification
from tests.contracts.task import Linear, check_task


def batch_of(labels, valid):
    return {"label": torch.tensor(labels), "valid": torch.tensor(valid)}


def test_the_loss_is_the_mean_over_valid_rows():
    logits = torch.randn(4, 3, requires_grad=True)
    batch = batch_of([0, 1, 2, 0], [True, False, True, True])
    loss = Classification(num_classes=3, label_smoothing=0.1).losses(logits, batch)
    keep = batch["valid"]
    expected = functional.cross_entropy(logits[keep], batch["label"][keep], label_smoothing=0.1)
    torch.testing.assert_close(loss["cross_entropy"], expected)
    loss["cross_entropy"].backward()
    assert (logits.grad[1] == 0).all() and (logits.grad[0] != 0).all()


def test_padding_that_overflows_does_no_harm():
    logits = torch.tensor([[1.0, 2.0], [-math.inf, 0.0]], requires_grad=True)
    loss = Classification(num_classes=2).losses(logits, batch_of([0, 0], [True, False]))
    assert torch.isfinite(loss["cross_entropy"])


def test_rows_that_are_not_valid_change_nothing():
    batch = {**batch_of([0, 1, 2, 0], [True] * 4), "x": torch.randn(4, 5)}
    check_task(Classification(num_classes=3), Linear(5, 3), batch)


def test_metrics_leave_invalid_rows_out():
    task = Classification(num_classes=3, top_k=2)
    metrics = task.metrics()
    logits = torch.tensor([[3.0, 2, 1], [3, 2, 1], [3, 2, 1], [3, 2, 1]])
    task.update(metrics, logits, batch_of([0, 1, 2, 0], [True, True, True, False]))
    figures = {name: value.item() for name, value in metrics.compute().items()}
    assert figures == pytest.approx({"accuracy": 1 / 3, "top2_accuracy": 2 / 3})


def test_figures_by_class_come_beside_the_same_metrics():
    task = Classification(num_classes=3, top_k=2)
    batch = batch_of([0, 1, 2, 0, 2], [True, True, True, True, False])
    logits = torch.tensor([[3.0, 2, 1], [3, 2, 1], [1, 2, 3], [1, 3, 2], [1, 2, 3]])
    for filled in (metrics := (task.metrics(), task.metrics_by_class())):
        task.update(filled, logits, batch)
    plain, detailed = (filled.compute() for filled in metrics)
    assert detailed.pop("confusion").tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert detailed == plain


def test_predictions_tell_the_truth_where_there_is_one_and_the_likeliest_classes():
    task = Classification(num_classes=3, class_names=("a", "b", "c"))
    logits = torch.tensor([[3.0, 2, 1], [1, 2, 3]])
    told = task.predictions(logits, batch_of([1, 2], [True, True]))
    assert (told["label"], told["class"]) == (["b", "c"], ["a", "c"])
    assert "label" not in task.predictions(logits, {})
    everything = plain_columns(told)
    assert list(everything) == ["label", "class", "score", *(f"probability_{n}" for n in "abc")]
    torch.testing.assert_close(everything["probability_b"], logits.softmax(1)[:, 1])
    best = plain_columns({"kind_probability": told["probability"]}, top=9)
    assert best["kind_class_2"] == ["b", "b"] and len(best) == 6
    torch.testing.assert_close(best["kind_probability_1"], told["score"])
    wider = task.predictions(torch.tensor([[1.0, 2, 3, 4, 5]]), {})
    assert wider["class"] == [4] and list(plain_columns(wider))[-2:] == [
        "probability_3", "probability_4",
    ]  # fmt: skip


def test_losses_of_the_model_itself_are_taken():
    task, batch = Classification(num_classes=3), batch_of([0], [True])
    logits = torch.zeros(1, 3)
    own = {"logits": logits, "loss_a": torch.tensor(1.0), "loss_b": torch.tensor(2.0)}
    assert total_loss(task, own, batch) == 3
    assert total_loss(task, {**own, "loss": torch.tensor(5.0)}, batch) == 5
    torch.testing.assert_close(
        total_loss(task, {"logits": logits}, batch), torch.tensor(math.log(3))
    )


def test_mistakes_say_what_to_do():
    with pytest.raises(ValueError, match=r"has no classes.*of streams dataset.source.classes"):
        Classification(num_classes=None)
    with pytest.raises(ValueError, match=r"task.top_k is 9, expected 1 .. 3"):
        Classification(num_classes=3, top_k=9)


@pytest.mark.parametrize("label", [-100, -1, 3])
def test_a_label_that_is_no_class_is_refused(label):
    batch = {
        "label": torch.tensor([0, label]),
        "valid": torch.tensor([True, True]),
        "key": ["a", "b"],
    }
    with pytest.raises(ValueError, match=f"'b' has label {label}, expected 0 to 2"):
        Classification(num_classes=3).losses(torch.zeros(2, 3), batch)


def test_one_class_alone_is_refused():
    with pytest.raises(ValueError, match=r"one class \(cat\)"):
        Classification(num_classes=1, class_names=("cat",))
