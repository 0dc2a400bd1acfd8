"""The keypoint task: what its losses are means of, and when a point counts as found."""

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.models.reference import keypoint_net
from penstock.pipeline.tasks.keypoints import Keypoints
from tests.contracts.task import check_task, rows_of


def batch_of(n: int = 4) -> dict:
    torch.manual_seed(n)
    points = torch.cat(
        [torch.rand(n, 3, 1) * 39, torch.rand(n, 3, 1) * 29, torch.full((n, 3, 1), 2.0)], 2
    )
    return {
        "image": torch.randn(n, 3, 30, 40),
        "keypoints": points,
        "valid": torch.ones(n, dtype=torch.bool),
        "key": [f"k{i}" for i in range(n)],
    }


class _Given(torch.nn.Module):
    def __init__(self, maps: torch.Tensor) -> None:
        super().__init__()
        self.given = maps

    def forward(self, batch: dict) -> torch.Tensor:
        return self.given


@pytest.fixture
def model():
    torch.manual_seed(0)
    return keypoint_net(num_classes=3, width=8).eval()


def test_a_loss_is_the_mean_over_its_rows_however_they_are_batched(model):
    task, batch = Keypoints(num_classes=3), batch_of()
    batch["keypoints"][1, :, 2] = 0  # nothing to be seen
    batch["keypoints"][2, 0, 2] = 0
    with torch.no_grad():
        alone = torch.stack(
            [total_loss(task, model(rows_of(batch, [i])), rows_of(batch, [i])) for i in range(4)]
        )
        assert alone[1] == 0
        assert torch.allclose(total_loss(task, model(batch), batch), alone.mean(), rtol=1e-4)
        batch["valid"] = torch.tensor([True, False, False, True])
        wanted = alone[[0, 3]].mean()
        assert torch.allclose(total_loss(task, model(batch), batch), wanted, rtol=1e-4)


def test_rows_that_are_not_valid_change_nothing(model):
    check_task(Keypoints(num_classes=3), model, batch_of())


def test_hidden_points_change_nothing(model):
    task, batch = Keypoints(num_classes=3), batch_of()
    batch["keypoints"][:, 1, 2] = 0
    other = {**batch, "keypoints": batch["keypoints"].clone()}
    other["keypoints"][:, 1, :2] = -500.0
    outputs = model(batch)
    assert total_loss(task, outputs, batch) == total_loss(task, outputs, other)


def test_a_heatmap_s_peak_is_its_keypoint(model):
    maps = torch.full((1, 3, 30, 40), -50.0)
    for point, (x, y) in enumerate([(0, 0), (39, 29), (7, 21)]):
        maps[0, point, y, x] = 50
    model.maps = _Given(maps)
    found = model({"image": None})["keypoints"]
    assert torch.allclose(found[0], torch.tensor([[0.0, 0], [39, 29], [7, 21]]), atol=1e-3)
    truth = torch.cat([found, torch.full((1, 3, 1), 2.0)], 2)
    batch = {"image": torch.zeros(1, 3, 30, 40), "keypoints": truth}
    assert (
        total_loss(Keypoints(num_classes=3), {"keypoints": found, "heatmaps": maps}, batch) < 1e-4
    )


def test_heatmaps_of_another_size_than_the_image_are_refused():
    batch = {"image": torch.zeros(1, 3, 30, 40), "keypoints": torch.ones(1, 3, 3)}
    outputs = {"keypoints": torch.zeros(1, 3, 2), "heatmaps": torch.zeros(1, 3, 15, 20)}
    with pytest.raises(ValueError, match=r"\[1, 3, 15, 20\], expected \[B, 3, 30, 40\].*interpol"):
        Keypoints(num_classes=3).losses(outputs, batch)


def test_figures():
    batch = batch_of(2)
    batch["valid"] = torch.tensor([True, False])
    batch["keypoints"][0, 2, 2] = 0
    found = batch["keypoints"][..., :2].clone()
    found[0, 0, 0] += 2.0  # a twentieth of 40 pixels
    found[0, 1, 1] += 2.5
    found[0, 2] += 99
    found[1] += 99
    task = Keypoints(num_classes=3)
    metrics = task.metrics()
    task.update(metrics, {"keypoints": found - 1e-4}, batch)
    figures = metrics.compute()
    assert figures["pck"] == 0.5
    assert figures["error"] == pytest.approx(2.25, abs=1e-2)


def test_clear_lines(model):
    for make in (lambda: Keypoints(num_classes=0), lambda: keypoint_net(num_classes=None)):
        with pytest.raises(ValueError, match="the data names no"):
            make()
    batch = batch_of()
    with pytest.raises(ValueError, match=r"keypoints are \[4, 3, 3\], expected \[B, 5, 3\]"):
        Keypoints(num_classes=5).losses({"keypoints": torch.zeros(4, 5, 2)}, batch)
    with pytest.raises(ValueError, match="got lists"):
        Keypoints(num_classes=3).losses(
            {"keypoints": torch.zeros(4, 3, 2)}, {**batch, "keypoints": [1]}
        )
    with pytest.raises(ValueError, match="the model gave Tensor"):
        Keypoints(num_classes=3).losses(torch.zeros(1), batch)
