"""Real ranks on gloo: nothing hangs, and nothing counts twice or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock import compose, fit
from tests.laws.conftest import make_photos
from tests.laws.runs import loader_of, overrides

SCRIPT = Path(__file__).with_name("ranks_job.py")
TRAINER = [
    "model.width=8", "scheduler=none", "optimizer=sgd", "optimizer.lr=0.05",
    "optimizer.momentum=0", "optimizer.nesterov=false", "optimizer.weight_decay=0",
    "trainer.max_epochs=1", "trainer.device=cpu", "trainer.num_threads=1", "trainer.progress=off",
    "trainer.timeout_s=200", "loader.engine=inline", "loader.num_workers=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def few(tmp_path_factory) -> Path:
    """Make two training images of each class, and two images for evaluation."""
    root = tmp_path_factory.mktemp("few")
    make_photos(root, {"ash": 2, "birch": 2, "cedar": 2, "dogwood": 2})
    for name in ("cedar", "dogwood"):
        for file in (root / "val" / name).iterdir():
            file.unlink()
    return root


def config_of(root: Path, positions: int, batch_size: int, tail: object, *more: str) -> Any:
    sampler = ["sampler=weighted", f"sampler.num_samples={positions}"]
    base = [o for o in overrides(root) if not o.startswith("sampler")]
    sizes = [f"loader.batch_size={batch_size}", f"loader.drop_last={str(tail).lower()}"]
    return compose([*base, *sampler, *TRAINER, *sizes, *more])


def trained(configs: list[Any], ranks: int, folder: Path, *, timeout_s: int = 250) -> list[Any]:
    """Return the results of the configs, with the final weights as ``weights``."""
    configs = [{**config, "outputs": str(folder / f"{ranks}-ranks")} for config in configs]
    if ranks == 1:
        results = [fit(config) for config in configs]
    else:
        (folder / "configs.json").write_text(json.dumps(configs))
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT)]
        command += [str(folder / "configs.json"), str(folder / "results.json")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results = json.loads((folder / "results.json").read_text())
    for result in results:
        file = Path(result["run_dir"]) / "checkpoints" / "last.pt"
        result["weights"] = torch.load(file, weights_only=True)["model"]
    return results


def check_same(one: dict[str, Any], many: dict[str, Any]) -> None:
    assert many["step"] == one["step"]
    assert many["bad_samples"] == one["bad_samples"]
    assert many["val/accuracy"] == one["val/accuracy"], "counts are equal to the last bit"
    assert many["val/loss"] == pytest.approx(one["val/loss"], rel=1e-5)
    for name, weight in one["weights"].items():
        torch.testing.assert_close(many["weights"][name], weight, rtol=1e-4, atol=2e-6)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_ranks_train_and_count_as_one_process_does(ranks, photos, few, tmp_path):
    # Fewer positions than ranks, a last batch with fewer rows than ranks, one row a batch; and
    # fewer rows to evaluate than ranks. The rate of one step shows its gradient.
    one_step = ["optimizer.lr=1"]
    configs = [
        config_of(few, 1, 4, False, *one_step),
        config_of(few, 1, 4, "pad", *one_step),
        config_of(few, 2, 1, True, "loader.eval_batch_size=1"),
        config_of(photos, 13, 6, False, "loader.eval_batch_size=7"),
        config_of(photos, 13, 6, "pad", "loader.eval_batch_size=2"),
    ]
    one = trained(configs, 1, tmp_path)
    many = trained(configs, ranks, tmp_path)
    for alone, shared in zip(one, many, strict=True):
        check_same(alone, shared)
    before = trained([config_of(few, 1, 4, False, "optimizer.lr=1e-30")], 1, tmp_path)
    moved = [
        (before[0]["weights"][name] - weight).abs().max()
        for name, weight in one[0]["weights"].items()
    ]
    assert max(moved) > 1e-3, "there was a gradient to compare"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_no_sizes_make_ranks_hang(ranks, few, tmp_path):
    configs = [
        config_of(few, positions, batch_size, tail, f"loader.eval_batch_size={batch_size}")
        for positions, batch_size, tail in product((1, 2, 5), (1, 2, 3, 5), (True, False, "pad"))
        if tail is not True or positions >= batch_size
    ]
    one = trained(configs, 1, tmp_path, timeout_s=300)
    many = trained(configs, ranks, tmp_path, timeout_s=600)
    for alone, shared in zip(one, many, strict=True):
        check_same(alone, shared)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_ranks_of_a_resumed_run_know_a_quarantined_record(photos, tmp_path, caplog):
    # Rank 1 alone computes record 10 at position 10: the second half of batch 1, positions 6 to 11.
    deadly = [o for o in TRAINER if not o.startswith("loader.")]
    deadly += ["augment.train.deadly={_target_: transform/laws_deadly, record: 10}"]
    deadly += ["loader=processes", "loader.num_workers=1"]
    deadly += ["loader.drop_last=false"]
    deadly += ["trainer.max_steps=4", "trainer.validate_every=0", "loader.max_error_rate=1"]
    config = compose([*overrides(photos, sampler="sequential"), *deadly])
    [result] = trained([config], 2, tmp_path)
    file = Path(result["run_dir"]) / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)["loader"]
    assert state["quarantined"] == [10] and state["next_batch"] == 4

    with caplog.at_level("WARNING"), loader_of(config, world_size=1) as loader:
        loader.load_state_dict({**state, "next_batch": 0})
        positions = [position for batch in loader for position in batch["position"].tolist()]
    assert positions == list(range(41)), "10 is there, its record replaced"
    assert "it is replaced" not in caplog.text, "no process died of it"
