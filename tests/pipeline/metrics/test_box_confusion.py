"""Which class boxes are taken for: matches, misses, what is found for nothing, and crowds."""

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.learning.confusion import BoxConfusion

A, B, NOTHING = 0, 1, 2
HERE, THERE = (0, 0, 20, 20), (30, 30, 60, 60)


def boxes(*rows, scores=None, crowd=None):
    given = {
        "boxes": torch.tensor([row[0] for row in rows], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor([row[1] for row in rows], dtype=torch.int64),
    }
    for name, values in (("scores", scores), ("crowd", crowd)):
        if values is not None:
            given[name] = torch.tensor(values)
    return given


@pytest.mark.parametrize(
    ("found", "truth", "cells"),
    [
        (boxes((HERE, A), scores=[0.9]), boxes((HERE, A)), {(A, A): 1}),
        (boxes((HERE, B), scores=[0.9]), boxes((HERE, A)), {(A, B): 1}),
        (boxes(scores=[]), boxes((HERE, A), (THERE, B)), {(A, NOTHING): 1, (B, NOTHING): 1}),
        (boxes((HERE, B), scores=[0.9]), boxes(), {(NOTHING, B): 1}),
        (boxes((HERE, A), scores=[0.2]), boxes((HERE, A)), {(A, NOTHING): 1}),
        (boxes((HERE, A), scores=[0.9]), boxes((THERE, A)), {(A, NOTHING): 1, (NOTHING, A): 1}),
        # A second box of an object that is found is one too many; the nearer one is the match.
        (boxes(((0, 0, 20, 18), A), (HERE, B), scores=[0.9, 0.3]), boxes((HERE, A)),
         {(A, B): 1, (NOTHING, A): 1}),
        # What need not be found is neither missed nor, where it is found, found for nothing.
        (boxes(((1, 1, 5, 5), A), scores=[0.9]), boxes((HERE, A), crowd=[1]), {}),
        (boxes((HERE, 7), scores=[0.9]), boxes((HERE, A)), {(A, NOTHING): 1}),
    ],
)  # fmt: skip
def test_a_box_counts_where_it_belongs(found, truth, cells):
    metric = BoxConfusion(2)
    metric.update(torch.tensor([3]), [found], [truth])
    expected = torch.zeros(3, 3, dtype=torch.int64)
    for cell, count in cells.items():
        expected[cell] = count
    assert metric.compute().tolist() == expected.tolist()


def test_images_add_up_and_boxes_do_not_match_across_them():
    metric, one = BoxConfusion(2), boxes((HERE, A), scores=[0.5])
    metric.update(torch.tensor([0, 1]), [one, boxes(scores=[])], [boxes(), boxes((HERE, A))])
    metric.update(torch.tensor([2]), [one], [boxes((HERE, A))])
    assert metric.compute().tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]
