"""Mean average precision: known cases, order, and parts put together."""

from __future__ import annotations

import pytest
import torch

from penstock.pipeline.learning.metrics import BoxMap


def boxes(*rows, scores=None):
    values = torch.tensor([row[:4] for row in rows], dtype=torch.float32).reshape(-1, 4)
    found = {
        "boxes": values,
        "labels": torch.tensor([int(row[4]) for row in rows], dtype=torch.int64),
    }
    return (
        found if scores is None else {**found, "scores": torch.tensor(scores, dtype=torch.float32)}
    )


TRUTH = [boxes((0, 0, 20, 20, 0), (30, 30, 60, 60, 1)), boxes((5, 5, 15, 25, 0)), boxes()]
PERFECT = [
    boxes((0, 0, 20, 20, 0), (30, 30, 60, 60, 1), scores=[0.9, 0.4]),
    boxes((5, 5, 15, 25, 0), scores=[0.7]),
    boxes(scores=[]),
]
IMAGES = torch.tensor([4, 9, 2])


def figures(found, *, images=IMAGES, truth=TRUTH, **options):
    metric = BoxMap(2, **options)
    metric.update(images, found, truth)
    return {name: float(value) for name, value in metric.compute().items()}


def test_all_found():
    found = figures(PERFECT, class_names=("a", "b"))
    assert found["map"] == found["map_50"] == found["mar_100"] == pytest.approx(1)
    assert found["map_class_a"] == found["map_class_b"] == pytest.approx(1)


def test_of_each_class_by_its_id():
    metric = BoxMap(3, class_names=("a", "b", "c"), by_class=True)
    found = [boxes((0, 0, 20, 20, 0), scores=[0.9]), *PERFECT[1:]]
    metric.update(IMAGES, found, TRUTH)
    computed = metric.compute()
    of_class = computed["average_precision"]
    assert of_class[:2].tolist() == [computed["map_class_a"], computed["map_class_b"]] == [1, 0]
    assert of_class[2].isnan() and computed["map_class_c"] == -1


def test_a_class_may_be_called_as_a_figure_is():
    found = [boxes((0, 0, 20, 20, 0), scores=[0.9]), PERFECT[1], PERFECT[2]]
    without, told = figures(found), figures(found, class_names=("50", "small"))
    assert told == {**without, "map_class_50": 1, "map_class_small": 0}


def test_nothing_found_and_nothing_there():
    nothing = [boxes(scores=[])] * 3
    assert figures(nothing)["map"] == 0
    assert figures(nothing, truth=[boxes()] * 3)["map"] == -1


def test_one_of_two_classes():
    found = [boxes((0, 0, 20, 20, 0), scores=[0.9]), PERFECT[1], PERFECT[2]]
    assert figures(found)["map"] == pytest.approx(0.5)


def test_overlap_decides_at_which_threshold_a_box_counts():
    # 20 x 20 against 20 x 16: an overlap of 0.8, found at 7 of the 10 thresholds.
    found = figures(
        [boxes((0, 0, 20, 16, 0), scores=[0.9])],
        images=torch.tensor([1]),
        truth=[boxes((0, 0, 20, 20, 0))],
    )
    assert found["map_50"] == found["map_75"] == pytest.approx(1)
    assert found["map"] == pytest.approx(0.7)


def test_a_better_score_for_a_wrong_box_costs_precision():
    wrong = (70, 70, 90, 90, 0)

    def with_wrong(score):
        first = boxes((0, 0, 20, 20, 0), (30, 30, 60, 60, 1), wrong, scores=[0.9, 0.4, score])
        return figures([first, *PERFECT[1:]])["map"]

    assert with_wrong(0.1) == pytest.approx(1)
    assert with_wrong(0.99) < 0.9


def test_a_crowd_need_not_be_found():
    truth = [{**TRUTH[0], "crowd": torch.tensor([0, 1])}, *TRUTH[1:]]
    found = [boxes((0, 0, 20, 20, 0), scores=[0.9]), *PERFECT[1:]]
    assert figures(found, truth=truth)["map"] == pytest.approx(1)


def test_neither_order_nor_cutting_into_batches_matters():
    whole = figures(PERFECT)
    metric = BoxMap(2)
    for row in (2, 0, 1):
        metric.update(IMAGES[row : row + 1], [PERFECT[row]], [TRUTH[row]])
    assert {name: float(value) for name, value in metric.compute().items()} == whole


def _rank(rank: int, rendezvous: str, answers) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    # All on one rank, then shared.
    for rows in ([0, 1, 2] if rank == 0 else [], [0] if rank == 0 else [1, 2]):
        metric = BoxMap(2)
        if rows:
            metric.update(IMAGES[rows], [PERFECT[i] for i in rows], [TRUTH[i] for i in rows])
        answers.put((rank, {name: float(value) for name, value in metric.compute().items()}))
    torch.distributed.destroy_process_group()


def test_ranks_together_even_one_that_saw_nothing(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, tmp_path / "meet", answers)) for r in (0, 1)]
    for process in ranks:
        process.start()
    try:
        found = [answers.get(timeout=120)[1] for _ in range(4)]
    finally:
        for process in ranks:
            process.join(120)
            process.kill()
    assert found == [figures(PERFECT)] * 4
