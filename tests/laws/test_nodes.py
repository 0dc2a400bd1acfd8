"""Torchrun restarts, loses and adds nodes: training continues at the exact batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from penstock import compose, fit
from tests.laws.conftest import make_photos
from tests.laws.nodes import Node, two_nodes, wait_for_step

FIRST = "10.77.0.1"
EPOCH, EPOCHS = 25, 4  # batches of 8 of 205 photographs
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    make_photos(root, {"ash": 95, "birch": 55, "cedar": 35, "dogwood": 20})
    return root


@pytest.fixture
def nodes(tmp_path):
    try:
        with two_nodes(tmp_path) as both:
            yield both
    except PermissionError as error:
        pytest.skip(f"network namespaces cannot be made here: {error}")


def settings(pictures: Path, outputs: Path, *more: str) -> list[str]:
    return [
        f"dataset.storage.path={pictures}", f"outputs={outputs}", "trainer.resume=auto",
        "augment=light", "augment.image_size=20", "sampler=weighted", "loader=threads",
        "loader.num_workers=1", "loader.batch_size=8", "model.width=8",
        f"trainer.max_epochs={EPOCHS}", "trainer.device=cpu", "trainer.num_threads=1",
        "trainer.progress=off", "trainer.checkpoint_every=7", "trainer.log_every=1",
        "trainer.timeout_s=20", *more,
    ]  # fmt: skip


def trained(outputs: Path) -> tuple[dict[str, torch.Tensor], list[list[str]]]:
    """Return the weights and the rows of metrics of the only run."""
    [run] = outputs.glob("*/*/summary.json")
    weights = torch.load(run.parent / "checkpoints/last.pt", weights_only=True)["model"]
    lines = (run.parent / "metrics.csv").read_text().splitlines()
    return weights, [line.split(",") for line in lines]


def finish(*nodes: Node) -> None:
    for node in nodes:
        assert node.ended(240) == 0, node.log.read_text()[-3000:]


def test_a_killed_rank_on_either_node_costs_one_restart_and_no_batch(nodes, pictures, tmp_path):
    for outputs, kills in (("straight", ()), ("killed", (35, 60, 85))):
        given = settings(pictures, tmp_path / outputs)
        for node in nodes:
            node.train("2", FIRST, given)
        for number, step in enumerate(kills):
            wait_for_step(tmp_path / outputs, step, 120)
            nodes[number % 2].kill_rank()  # one more kill than restarts would be one too many
        finish(*nodes)
    expected, rows = trained(tmp_path / "straight")
    got, other = trained(tmp_path / "killed")
    assert [name for name in expected if not torch.equal(expected[name], got[name])] == []
    assert len(rows) > EPOCH * EPOCHS and rows == other


def test_one_node_continues_without_the_other_until_it_is_back(nodes, pictures, tmp_path):
    first, second = nodes
    slowly = ["imports=[tests.laws.components]", "trainer.max_epochs=16", "optimizer.lr=1e-4"]
    slowly += ["augment.train.slow={_target_: transform/laws_slow, seconds: 0.015}"]
    given = settings(pictures, tmp_path / "cut", *slowly)
    for node in nodes:
        node.train("1:2", FIRST, given)
    wait_for_step(tmp_path / "cut", 35, 120)
    second.cut()
    wait_for_step(tmp_path / "cut", 80, 120)
    second.mend()
    second.train("1:2", FIRST, given)
    finish(first, second)
    said = first.log.read_text()
    assert said.count("batch 8 = 2 ranks x 4") == 2, "before, and grown again"
    assert "the checkpoint is of 2 ranks, this run has 1" in said
    assert "the checkpoint is of 1 ranks, this run has 2" in said

    fit(compose(settings(pictures, tmp_path / "alone", *slowly)))
    expected, rows = trained(tmp_path / "alone")
    got, other = trained(tmp_path / "cut")
    assert [row[0] for row in rows] == [row[0] for row in other], "every step once"
    for row, same in zip(rows[1:], other[1:], strict=True):
        for figure, again in zip(row[1:], same[1:], strict=True):
            assert (float(figure or 0)) == pytest.approx(float(again or 0), rel=1e-3, abs=1e-3)
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, rtol=1e-2, atol=1e-3)
