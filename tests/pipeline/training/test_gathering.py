"""Results of all ranks in global order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.pipeline.training.distributed.world import World, gather_in_order
from tests.pipeline.loader.fakes import FakeDataset, make_loader

CPU = torch.device("cpu")
# Positions, batch and ranks: batches short by one, ranks of unequal shares, one without samples.
CASES = [(23, 8, "keep"), (23, 7, "pad"), (1, 4, "keep"), (9, 4, "pad")]


def results(loader, **more):
    for batch in loader:
        yield {
            "position": batch["position"],
            "valid": batch["valid"],
            "key": batch["key"],
            "mean": batch["image"].double().mean((1, 2, 3)),
            **more,
        }


def ranked(n, batch_size, tail, *, rank, world_size, bad=()):
    """The loader of a rank; evaluation, padded or not."""
    return make_loader(
        FakeDataset(n, bad=bad),
        split="train",
        batch_size=batch_size,
        drop_last="pad" if tail == "pad" else False,
        rank=rank,
        world_size=world_size,
        on_error="skip",
        max_error_rate=1.0,
    )


def plain(found):
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in found.items()}


def gathered(case, *, rank=0, world_size=1, **more):
    loader = ranked(*case, rank=rank, world_size=world_size, **more)
    return plain(gather_in_order(results(loader), World(rank, world_size, CPU)))


@pytest.mark.parametrize("case", CASES)
def test_one_process_has_every_record_once(case):
    found = gathered(case)
    assert found["position"] == list(range(case[0]))
    assert found["key"] == FakeDataset(case[0]).index.keys(np.arange(case[0]))
    assert set(found) == {"position", "key", "mean"}


def test_skipped_samples_are_left_out():
    found = gathered((9, 4, "keep"), bad=[2, 8])
    assert found["position"] == [0, 1, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{"logits": torch.zeros(2)}], "has logits, and no 'position'"),
        ([{"position": torch.tensor([0, 1]), "key": ["a"]}], "'key' has 1 rows, 'position' 2"),
        ([{"position": torch.tensor([0, 0])}], "position 0 stands twice; give the batches of one"),
        (
            [{"position": torch.tensor([0]), "a": [1]}, {"position": torch.tensor([1])}],
            "a batch has position, those before a, position",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        gather_in_order(batches, World(0, 1, CPU))


def test_nothing_at_all():
    assert gather_in_order([], World(0, 1, CPU))["position"].tolist() == []


def _rank(rank: int, rendezvous: str, answers) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2
    )
    for case in CASES:
        answers.put((case, gathered(case, rank=rank, world_size=2)))
    try:  # a mistake of one rank is told to both
        batches = [{"position": torch.tensor([rank])}] if rank else [{"logits": torch.zeros(1)}]
        gather_in_order(batches, World(rank, 2, CPU))
    except ValueError as error:
        answers.put(("refused", str(error)))
    torch.distributed.destroy_process_group()


def test_two_ranks_give_what_one_gives(tmp_path):
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, tmp_path / "meet", answers)) for r in (0, 1)]
    for process in ranks:
        process.start()
    try:
        found = [answers.get(timeout=120) for _ in range(2 * len(CASES) + 2)]
    finally:
        for process in ranks:
            process.join(120)
            process.kill()
    for case in CASES:
        assert [rows for name, rows in found if name == case] == [gathered(case)] * 2
    refused = [said for name, said in found if name == "refused"]
    assert len(refused) == 2 and all("no 'position'" in said for said in refused)
