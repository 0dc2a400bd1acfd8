"""Compare boxes: areas, overlaps, suppression, and the assignment of boxes to places."""

from __future__ import annotations

import torch


def areas(boxes: torch.Tensor) -> torch.Tensor:
    """Areas of xyxy boxes, [..., 4] to [...]."""
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def overlaps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Intersection over union of every pair of boxes, [N, 4] and [M, 4] to [N, M]."""
    common = _intersections(a[:, None], b[None])
    return common / (areas(a)[:, None] + areas(b)[None] - common).clamp(min=1e-9)


def covered(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Share of every box that lies in every other, [N, 4] and [M, 4] to [N, M]."""
    return _intersections(a[:, None], b[None]) / areas(a)[:, None].clamp(min=1e-9)


def paired_overlaps(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """IoU and generalized IoU of boxes row by row, [N, 4] each, to [N] each.

    Source: Rezatofighi et al., "Generalized Intersection over Union", CVPR 2019.
    """
    common = _intersections(a, b)
    union = areas(a) + areas(b) - common
    iou = common / union.clamp(min=1e-9)
    corners = torch.cat([torch.minimum(a, b)[:, :2], torch.maximum(a, b)[:, 2:]], 1)
    hull = areas(corners).clamp(min=1e-9)
    return iou, iou - (hull - union) / hull


def suppressed(
    boxes: torch.Tensor, scores: torch.Tensor, labels: torch.Tensor, *, iou: float
) -> torch.Tensor:
    """Greedy suppression within each class: of boxes that overlap by more than `iou`, the best.

    Args:
        boxes: xyxy, [N, 4].
        scores: [N].
        labels: int64 [N].
        iou: The most that two boxes of a class may overlap.

    Returns:
        Rows that are kept, int64 [K], the highest score first.
    """
    order = scores.argsort(descending=True, stable=True)
    rivals = overlaps(boxes[order], boxes[order]) > iou
    rivals &= labels[order][:, None] == labels[order][None]
    matrix = rivals.cpu().numpy()
    kept, gone = [], torch.zeros(len(order), dtype=torch.bool).numpy()
    for row in range(len(order)):
        if not gone[row]:
            kept.append(row)
            gone |= matrix[row]
    return order[torch.tensor(kept, dtype=torch.int64, device=order.device)]


def assigned(
    points: torch.Tensor, boxes: torch.Tensor, *, radius: float | torch.Tensor
) -> torch.Tensor:
    """The box that each place of a grid is to predict.

    A place belongs to the boxes in which it lies and to whose centre it is near; of several, to
    the smallest. A box without any place gets the nearest one. Source: the centre sampling of
    Tian et al., "FCOS", arXiv:2006.09214.

    Args:
        points: x, y of every place, [N, 2].
        boxes: xyxy, [M, 4].
        radius: How far from a centre, in pixels, along each axis.

    Returns:
        Row of `boxes`, or -1 for none, int64 [N].
    """
    if not len(boxes):
        return torch.full((len(points),), -1, dtype=torch.int64, device=points.device)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    away = (points[:, None] - centres[None]).abs()
    inside = (points[:, None] > boxes[None, :, :2]) & (points[:, None] < boxes[None, :, 2:])
    theirs = inside.all(-1) & (away < radius).all(-1)
    nearest = away.square().sum(-1).argmin(0)
    rows = torch.arange(len(points), device=points.device)
    theirs |= (rows[:, None] == nearest) & ~theirs.any(0)
    size = areas(boxes)[None].expand_as(theirs).where(theirs, torch.inf)
    smallest, owner = size.min(1)
    return owner.where(smallest.isfinite(), -1)


def _intersections(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    sides = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    return sides.clamp(min=0).prod(-1)
