"""CMC and mean average precision beside the plainest counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.learning.metrics import Retrieval


def drawn(seed, n=24, roles=True):
    """Images at random, in any order; some of nobody, some of unknown camera."""
    rng = np.random.default_rng(seed)
    return {
        "positions": torch.tensor(rng.permutation(n)),
        # On a coarse grid, so that many distances are equal.
        "features": torch.tensor(rng.integers(-1, 2, (n, 3)), dtype=torch.float32),
        "identities": torch.tensor(rng.integers(-1, 5, n)),
        "cameras": torch.tensor(rng.integers(-1, 3, n)),
        "roles": torch.tensor(rng.integers(0, 3, n) if roles else np.zeros(n, np.int64)),
    }


def brute(data):
    """One query, one image of the gallery at a time."""
    rows = sorted(zip(*(values.tolist() for values in data.values()), strict=True))
    found, precisions = [], []
    for place, features, identity, camera, role in rows:
        if identity < 0 or role == 2:
            continue
        ranking = []
        for other, theirs, who, where, part in rows:
            own = who == identity and where == camera and camera >= 0
            if who >= 0 and part != 1 and other != place and not own:
                distance = sum((a - b) ** 2 for a, b in zip(features, theirs, strict=True))
                ranking.append((distance, other, who == identity))
        hits = [hit for _, _, hit in sorted(ranking)]
        if any(hits):
            found.append(hits.index(True) + 1)
            ranks = [rank for rank, hit in enumerate(hits, start=1) if hit]
            precisions.append(np.mean([k / rank for k, rank in enumerate(ranks, start=1)]))
    count = max(len(found), 1)
    figures = {f"rank_{k}": sum(rank <= k for rank in found) / count for k in (1, 5, 10)}
    return {**figures, "map": sum(precisions) / count}


def figures(data, rows=None):
    metric = Retrieval()
    for some in [range(len(data["positions"]))] if rows is None else rows:
        metric.update(**{name: values[list(some)] for name, values in data.items()})
    return {name: float(value) for name, value in metric.compute().items()}


@given(st.integers(0, 999), st.integers(1, 40), st.booleans())
def test_it_counts_as_one_would_by_hand(seed, n, roles):
    data = drawn(seed, n, roles)
    assert figures(data) == pytest.approx(brute(data))


def test_neither_order_nor_batches_matter():
    data = drawn(3)
    assert figures(data, [range(7, 24), range(0, 2), range(2, 7)]) == figures(data)


def test_the_own_camera_does_not_help():
    data = {
        "positions": torch.arange(4),
        "features": torch.tensor([[0.0], [0.0], [1.0], [5.0]]),
        "identities": torch.tensor([7, 7, 8, 7]),
        "cameras": torch.tensor([1, 1, 1, 2]),
        "roles": torch.tensor([1, 2, 2, 2]),
    }
    found = figures(data)
    assert found["rank_1"] == 0 and found["rank_5"] == 1 and found["map"] == 0.5
    data["cameras"][1] = -1
    assert figures(data)["rank_1"] == 1


def test_without_anything_to_find_all_is_0():
    assert set(figures(drawn(0), [[]]).values()) == {0}
    assert set(figures({**drawn(0), "identities": torch.arange(24)}).values()) == {0}
    assert {float(value) for value in Retrieval().compute().values()} == {0}


def _rank(rank: int, rendezvous: str, answers) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    everything = list(range(24))
    for share in (everything if rank == 0 else [], everything[rank::2]):
        answers.put(figures(drawn(3), [share] if share else []))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_ranks_together_even_one_that_saw_nothing(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, tmp_path / "meet", answers)) for r in (0, 1)]
    for process in ranks:
        process.start()
    try:
        found = [answers.get(timeout=120) for _ in range(4)]
    finally:
        for process in ranks:
            process.join(120)
            process.kill()
    assert found == [figures(drawn(3))] * 4
