"""Ranks that hold a part of each weight train as others do, and so do their checkpoints."""

import errno
import shutil
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from penstock.pipeline.training import job
from penstock.pipeline.training.checkpoint import read_checkpoint, read_weights
from penstock.pipeline.training.distributed.strategy import strategy_named
from penstock.pipeline.training.distributed.world import joined
from penstock.pipeline.training.settings import TrainerSettings
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import (
    assert_equal_weights,
    assert_near,
    rows,
    start,
    the_folder,
    weights,
)

pytestmark = pytest.mark.usefixtures("tiny_parts")

FSDP = {"strategy": "fsdp"}
EMA = {"ema": {"_target_": "callback/ema", "decay": 0.5}}


def trained(outputs: Path, trainer, *, ranks=1, **options) -> Path:
    """The folder of a run, trained in this process or by ranks."""
    config = config_of(outputs, trainer, dropout=0.0, **options) | {"callback": EMA}
    if ranks == 1:
        return Path(job.train(config)["run_dir"])
    process = start(config, ranks=ranks)
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    return the_folder(outputs)


def shards_of(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("shards-*"))


def figures(run: Path):
    return [{k: float(v or 0) for k, v in row.items() if "time" not in k} for row in rows(run)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_train_as_a_process_does_and_other_numbers_of_ranks_go_on(tmp_path):
    trainer = {"accumulate": 2, "clip_norm": 0.5, "checkpoint_every": None}
    alone = trained(tmp_path / "alone", trainer)
    straight = trained(tmp_path / "two", {**trainer, **FSDP}, ranks=2)
    assert_near(weights(alone), weights(straight))
    for one, other in zip(figures(alone), figures(straight), strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    for place in shards_of(straight):
        first, second = (sum(f.stat().st_size for f in place.glob(f"__{n}_*")) for n in (0, 1))
        assert 0.5 < first / second < 2, "each rank has written its part"
    for ranks in (3, 1, 2):
        shutil.copytree(straight, run := tmp_path / f"on-{ranks}" / "day" / "run")
        before = {"resume": str(run / "checkpoints" / "previous.pt")}
        gone_on = trained(run.parents[1], {**trainer, **FSDP, **before}, ranks=ranks)
        assert gone_on == run
        check = assert_equal_weights if ranks == 2 else assert_near
        check(weights(straight), weights(run))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rank_that_is_killed_costs_a_restart_and_no_step(tmp_path):
    trainer = {**FSDP, "resume": "auto", "checkpoint_every": 1, "max_epochs": 6}
    straight = trained(tmp_path / "straight", trainer, ranks=2)
    config = config_of(tmp_path / "killed", trainer, dropout=0.0, sleep_s=0.2)
    process = start(config | {"callback": EMA}, ranks=2, restarts=3)
    saved: set[int] = set()
    deadline = time.monotonic() + 200
    while len(saved) < 3 and process.poll() is None and time.monotonic() < deadline:
        saved |= {file.stat().st_mtime_ns for file in tmp_path.glob("killed/*/*/*/last.pt")}
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    psutil.Process(process.pid).children()[-1].kill()
    _, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    # Its neighbour fails of that, and may be what torchrun names.
    assert "failed (exitcode: " in errors, errors
    run = the_folder(tmp_path / "killed")
    assert_equal_weights(weights(straight), weights(run))
    assert (straight / "metrics.csv").read_bytes() == (run / "metrics.csv").read_bytes()


@pytest.mark.gpu
def test_a_gpu_goes_on_from_its_shards_exactly(tmp_path):
    trainer = {**FSDP, "device": "cuda", "amp": "bf16", "checkpoint_every": None}
    straight = trained(tmp_path / "straight", trainer)
    shutil.copytree(straight, run := tmp_path / "again" / "day" / "run")
    before = {"resume": str(run / "checkpoints" / "previous.pt")}
    assert trained(run.parents[1], {**trainer, **before}) == run
    assert_equal_weights(weights(straight), weights(run))


def test_an_average_of_weights_is_what_is_validated_and_saved(tmp_path):
    alone, shared = trained(tmp_path / "ddp", {}), trained(tmp_path / "fsdp", FSDP)
    assert_near(weights(alone), weights(shared))
    assert_near(weights(alone, "best.pt"), weights(shared, "best.pt"))
    for one, other in zip(figures(alone), figures(shared), strict=True):
        assert one == pytest.approx(other, rel=1e-5)


def test_whole_weights_are_read_from_shards_and_train_on_by_the_other_strategy(tmp_path):
    run = trained(tmp_path / "fsdp", {**FSDP, "max_epochs": 2})
    found = read_weights(str(run)).tensors
    assert_equal_weights(weights(run, "best.pt"), found)
    straight = trained(tmp_path / "ddp", {"max_epochs": 2})
    gone_on, wanted = (
        trained(tmp_path, {"max_epochs": 3, "resume": str(each)}) for each in (run, straight)
    )
    assert_near(weights(wanted), weights(gone_on))
    with pytest.raises(ValueError, match=r"written with trainer.strategy=ddp, this run has fsdp; "):
        trained(tmp_path, {**FSDP, "max_epochs": 4, "resume": str(straight)})


def test_shards_of_the_best_and_the_last_two_are_kept_and_no_others(tmp_path):
    run = trained(tmp_path, {**FSDP, "max_epochs": 1})
    rest = run / "checkpoints" / "shards-of-a-run-that-was-killed"
    rest.mkdir()
    trained(tmp_path, {**FSDP, "max_epochs": 5, "checkpoint_every": 1, "resume": str(run)})
    names = ("last.pt", "previous.pt", "best.pt")
    content = [torch.load(run / "checkpoints" / name, weights_only=True) for name in names]
    assert {each["shards"]["folder"] for each in content} == {f.name for f in shards_of(run)}
    assert all(read_checkpoint(run / "checkpoints" / name)["model"] for name in names)


def test_a_flipped_bit_in_shards_is_seen_and_the_one_before_used(tmp_path, capsys):
    straight = trained(tmp_path / "straight", FSDP)
    run = trained(tmp_path / "damaged", FSDP)
    last = run / "checkpoints" / "last.pt"
    place = last.with_name(torch.load(last, weights_only=True)["shards"]["folder"])
    content = bytearray((place / "__0_0.distcp").read_bytes())
    needle = weights(run)["head.weight"].numpy().tobytes()
    content[content.index(needle) + 5] ^= 1
    (place / "__0_0.distcp").write_bytes(content)
    with pytest.raises(ValueError, match=r"last.pt is damaged: checksum of .*__0_0.distcp$"):
        read_checkpoint(last)
    capsys.readouterr()
    trained(tmp_path / "damaged", {**FSDP, "resume": str(run)})
    assert "previous.pt, the one before" in capsys.readouterr().out
    assert_equal_weights(weights(straight), weights(run))


def test_a_checkpoint_without_its_shards_is_one_clear_line(tmp_path):
    run = trained(tmp_path, {**FSDP, "max_epochs": 1})
    shutil.copy(run / "checkpoints" / "last.pt", tmp_path / "moved.pt")
    with pytest.raises(ValueError, match=r"moved.pt lacks .*; where it was copied, copy that fold"):
        read_checkpoint(tmp_path / "moved.pt")


def test_a_full_disk_is_one_clear_line_and_the_checkpoint_before_stays(tmp_path, monkeypatch):
    from torch.distributed.checkpoint import filesystem

    create = filesystem.FileSystem.create_stream

    def full(self, path, mode):
        if "w" in mode:
            raise OSError(errno.ENOSPC, "No space left on device")
        return create(self, path, mode)

    run = trained(tmp_path, {**FSDP, "max_epochs": 1})
    before = weights(run)
    monkeypatch.setattr(filesystem.FileSystem, "create_stream", full)
    with pytest.raises(ValueError, match=r"last.pt cannot be written: No space left on device; fr"):
        trained(tmp_path, {**FSDP, "max_epochs": 2, "resume": str(run)})
    assert_equal_weights(before, weights(run))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"amp": "fp16"}, "strategy=fsdp does not go with amp=fp16; type trainer.amp=bf16"),
        ({"channels_last": True}, "does not go with channels_last=true; type trainer.channels_la"),
    ],
)
def test_settings_that_do_not_go_with_it(more, said):
    with pytest.raises(ValueError, match=said):
        TrainerSettings(**FSDP, **more)


def test_a_run_at_a_url_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"outputs is s3://bucket/runs, and with trainer.strat"):
        job.train(config_of(tmp_path, FSDP) | {"outputs": "s3://bucket/runs"})


class Tied(nn.Module):
    """A model of lists in lists, whose first and last step have a weight together."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList([nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5)])
        self.steps[2].weight = self.steps[0].weight
        self.pairs = nn.ModuleList([nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])])

    def forward(self, rows):
        first, second, last = self.steps
        [[linear, relu]] = self.pairs
        return last(relu(linear(second(first(rows)))))


def test_any_model_gives_the_outputs_and_gradients_that_it_gives_whole():
    torch.manual_seed(0)
    alone, rows_of_it = Tied(), torch.arange(5)
    shared = Tied()
    shared.load_state_dict(alone.state_dict())
    alone(rows_of_it).square().sum().backward()
    with joined("cpu", 20, grouped=True) as world:
        called = strategy_named("fsdp")(world).share(shared)
        for _ in range(2):
            outputs = called(rows_of_it)
        torch.testing.assert_close(outputs, alone(rows_of_it))
        outputs.square().sum().backward()
        gradients = {name: weight.grad.full_tensor() for name, weight in shared.named_parameters()}
    for name, weight in alone.named_parameters():
        torch.testing.assert_close(gradients[name], weight.grad)
