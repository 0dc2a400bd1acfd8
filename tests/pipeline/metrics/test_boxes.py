"""Boxes as tensors, beside the plainest arithmetic."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.learning.boxes import areas, assigned, overlaps, paired_overlaps, suppressed


def some_boxes(seed: int, count: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 50, (count, 2, 2))
    return torch.tensor(
        np.concatenate([corners.min(1), corners.max(1) + 1], 1), dtype=torch.float32
    )


def iou(a, b) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0) * max(height, 0)
    both = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return common / (both - common)


@given(st.integers(0, 99), st.integers(0, 9), st.integers(0, 9))
def test_overlaps(seed, n, m):
    a, b = some_boxes(seed, n), some_boxes(seed + 1, m)
    wanted = [[iou(x, y) for y in b.tolist()] for x in a.tolist()]
    assert overlaps(a, b).shape == (n, m)
    assert torch.allclose(overlaps(a, b), torch.tensor(wanted).reshape(n, m), atol=1e-5)


@given(st.integers(0, 99))
def test_paired_overlaps(seed):
    a, b = some_boxes(seed, 6), some_boxes(seed + 1, 6)
    found, general = paired_overlaps(a, b)
    assert torch.allclose(found, overlaps(a, b).diagonal(), atol=1e-6)
    assert (general <= found + 1e-6).all() and (general >= -1).all()
    same = paired_overlaps(a, a)
    assert torch.allclose(same[0], torch.ones(6)) and torch.allclose(same[1], torch.ones(6))
    apart = torch.tensor([[0.0, 0, 1, 1]]), torch.tensor([[3.0, 0, 4, 1]])
    assert paired_overlaps(*apart)[1].item() == -0.5  # half of the hull is neither


@given(st.integers(0, 99), st.integers(0, 30))
def test_suppression_leaves_the_best_of_each_class(seed, count):
    rng = np.random.default_rng(seed)
    boxes, scores = some_boxes(seed, count), torch.tensor(rng.uniform(size=count))
    labels = torch.tensor(rng.integers(0, 2, count))
    kept = suppressed(boxes, scores, labels, iou=0.3).tolist()
    wanted: list[int] = []
    for row in sorted(range(count), key=lambda row: -scores[row]):
        rivals = [k for k in wanted if labels[k] == labels[row]]
        if all(iou(boxes[row].tolist(), boxes[k].tolist()) <= 0.3 for k in rivals):
            wanted.append(row)
    assert kept == wanted


def grid(size: int, stride: int) -> torch.Tensor:
    steps = (torch.arange(size) + 0.5) * stride
    return torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1).reshape(-1, 2)


@given(st.integers(0, 99), st.integers(0, 8))
def test_every_box_has_a_place_unless_a_smaller_one_takes_it(seed, count):
    points, boxes = grid(13, 4), some_boxes(seed, count)
    owner = assigned(points, boxes, radius=6.0)
    assert owner.shape == (169,)
    for place, row in enumerate(owner.tolist()):
        if row < 0:
            continue
        x, y = points[place].tolist()
        left, top, right, bottom = boxes[row].tolist()
        inside = left < x < right and top < y < bottom
        lonely = (owner == row).sum() == 1
        assert inside or lonely
    for row in range(count):
        if not (owner == row).any():
            assert (areas(boxes) <= areas(boxes)[row]).sum() > 1


def test_a_box_between_places_gets_the_nearest():
    boxes = torch.tensor([[7.9, 8.1, 8.05, 8.2]])  # places lie at 2, 6, 10, ...
    owner = assigned(grid(8, 4), boxes, radius=6.0)
    [place] = (owner == 0).nonzero()[:, 0].tolist()
    assert grid(8, 4)[place].tolist() in ([6, 6], [10, 6], [6, 10], [10, 10])
