"""The identity task: what its losses are means of, what is left out, what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from penstock.pipeline.learning.losses import batch_hard, total_loss
from penstock.pipeline.models.reference import embedder
from penstock.pipeline.tasks.identity import Identity
from tests.contracts.task import check_task, rows_of

PEOPLE = torch.tensor([3, 3, 3, 7, 7, 5, 5, -1])


def batch_of(n: int = 8) -> dict:
    torch.manual_seed(n)
    return {
        "image": torch.randn(n, 3, 16, 16),
        "identity": PEOPLE[:n],
        "position": torch.arange(n),
        "valid": torch.ones(n, dtype=torch.bool),
        "key": [f"k{i}" for i in range(n)],
    }


@pytest.fixture
def model():
    torch.manual_seed(0)
    return embedder(num_classes=3, width=8, features=5)


@pytest.fixture
def task():
    return Identity(num_classes=3, class_names=("3", "5", "7"), field="identity")


def plain_triplets(features, identities, margin):
    """One anchor at a time, for those with an equal and another."""
    losses = []
    for i, who in enumerate(identities.tolist()):
        apart = [math.dist(features[i].tolist(), f) for f in features.tolist()]
        equal = [d for j, d in enumerate(apart) if identities[j] == who and j != i]
        other = [d for j, d in enumerate(apart) if identities[j] != who]
        if not equal or not other:
            losses.append(0.0)
            continue
        excess = max(equal) - min(other)
        soft = math.log1p(math.exp(excess))
        losses.append(soft if margin is None else max(excess + margin, 0.0))
    return losses


@pytest.mark.parametrize("margin", [0.3, 2.0, None])
def test_triplets_are_the_hardest_of_each_row(margin):
    torch.manual_seed(1)
    features, people = torch.randn(6, 4), PEOPLE[:6]  # the last has no equal
    valid = torch.ones(6, dtype=torch.bool)
    found = batch_hard(features, people, valid, margin=margin)
    assert found.tolist() == pytest.approx(plain_triplets(features, people, margin), abs=1e-5)


def test_features_have_length_1(model):
    for size in ((16, 16), (7, 33)):
        outputs = model({"image": torch.randn(2, 3, *size)})
        assert torch.allclose(outputs["features"].norm(dim=1), torch.ones(2))
        assert outputs["logits"].shape == (2, 3)
    assert "logits" not in embedder(num_classes=3, classifier=False)(batch_of())


def test_rows_that_are_not_valid_change_nothing(model, task):
    batch = batch_of()
    rows = [0, 1, 3, 4, 6]
    batch["valid"] = torch.zeros(8, dtype=torch.bool)
    batch["valid"][rows] = True
    with_padding = total_loss(task, model(batch), batch)
    alone = total_loss(task, model(rows_of(batch, rows)), rows_of(batch, rows))
    assert torch.allclose(with_padding, alone, rtol=1e-5) and alone > 0
    batch["image"][2] = torch.inf
    outputs = model(batch)
    loss = total_loss(task, outputs, batch)
    assert torch.allclose(loss, alone, rtol=1e-5)
    [gradient] = torch.autograd.grad(loss, [outputs["features"]])
    assert not gradient[[2, 5, 7]].any() and gradient[rows].isfinite().all()


def test_it_keeps_the_contract(model, task):
    check_task(task, model.eval(), batch_of(7))


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [0, 3, 5], [7, 7, 0]])
def test_without_a_triplet_there_is_none(rows, model, task):
    batch = rows_of(batch_of(), rows)
    losses = task.losses(model(batch), batch)
    assert losses["triplets"].item() == 0
    losses["triplets"].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_equal_images_have_a_gradient():
    features = torch.zeros(4, 3, requires_grad=True)
    loss = batch_hard(features, PEOPLE[[0, 1, 3, 4]], torch.ones(4, dtype=torch.bool), margin=0.3)
    loss.sum().backward()
    assert features.grad.isfinite().all()


def test_cross_entropy_is_of_the_identities_that_are_known(model, task):
    batch = batch_of()
    batch["identity"] = torch.tensor([3, 5, 7, 4, 9, -1, 3, 3])
    batch["valid"][6] = False
    outputs = model(batch)
    found = task.losses(outputs, batch)["cross_entropy"]
    expected = torch.nn.functional.cross_entropy(
        outputs["logits"][[0, 1, 2, 7]],
        torch.tensor([0, 1, 2, 0]),
        label_smoothing=0.1,
        reduction="sum",
    )
    assert torch.allclose(found, expected / 7)


def test_weights():
    batch, outputs = batch_of(), embedder(num_classes=3, width=8)(batch_of())
    names = ("3", "5", "7")
    plain = Identity(num_classes=3, class_names=names, field="identity").losses(outputs, batch)
    heavy = Identity(
        num_classes=3, class_names=names, field="identity", triplet_weight=2, class_weight=0
    ).losses(outputs, batch)
    assert heavy["triplets"] == 2 * plain["triplets"] and heavy["cross_entropy"] == 0


def test_a_class_may_be_the_identity():
    task = Identity(num_classes=2, class_names=("cat", "dog"))
    batch = {"label": torch.tensor([0, 1, 1]), "valid": torch.ones(3, dtype=torch.bool)}
    outputs = {"features": torch.eye(3), "logits": torch.zeros(3, 2)}
    assert task.losses(outputs, batch)["cross_entropy"].item() == pytest.approx(math.log(2))


def test_queries_are_sought_in_the_gallery():
    features = torch.tensor([[0.0], [0.1], [0.0], [3.0]])
    batch = {
        "identity": torch.tensor([1, 2, 1, 1]),
        "camera": torch.tensor([1, 2, 1, 2]),
        "role": ["query", "gallery", "gallery", "gallery"],
        "position": torch.arange(4),
        "valid": torch.ones(4, dtype=torch.bool),
    }
    task = Identity(num_classes=2, class_names=("1", "2"), field="identity")

    def figures(batch):
        metrics = task.metrics()
        task.update(metrics, {"features": features}, batch)
        return {name: float(value) for name, value in metrics.compute().items()}

    assert figures(batch) == {"rank_1": 0, "rank_5": 1, "rank_10": 1, "map": 0.5}
    del batch["camera"]
    assert figures(batch)["rank_1"] == 1
    batch["valid"][2] = False
    assert figures(batch)["rank_1"] == 0
    batch["role"][3] = "probe"
    with pytest.raises(ValueError, match="role 'probe', expected query or gallery"):
        figures(batch)


def test_what_does_not_fit_is_refused(task, model):
    batch = batch_of()
    with pytest.raises(ValueError, match="the model gave Tensor; expected a dict with 'features'"):
        task.losses(torch.zeros(8, 3), batch)
    with pytest.raises(ValueError, match="'identity': no such field; the batch has image, key"):
        task.losses(model(batch), {k: v for k, v in batch.items() if k != "identity"})
    with pytest.raises(ValueError, match="has the classes circle, expected whole numbers"):
        Identity(num_classes=1, class_names=("circle",), field="box_labels")
