"""Callbacks in a run: averaged weights, an early end, a profile, and those of one's own."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from penstock.core.contracts import Callback
from penstock.core.registry import register
from penstock.pipeline.training import job
from penstock.pipeline.training.callbacks.early_stopping import EarlyStopping
from penstock.pipeline.training.callbacks.ema import WeightAverage
from penstock.pipeline.training.callbacks.profile import Profile
from tests.pipeline.training.tiny_job import TinyLoader, TinyNet, config_of
from tests.pipeline.training.tiny_runs import (
    assert_equal_weights,
    assert_near,
    checkpoint,
    rows,
    start,
    the_folder,
    weights,
)

pytestmark = pytest.mark.usefixtures("tiny_parts")


@register("callback", "test_watcher")
class Watcher(Callback):
    """Writes down what it is told, and ends the run when it is told to."""

    told: list[object] = []  # noqa: RUF012

    def __init__(self, *, ends_after: int = 99) -> None:
        self._ends_after = ends_after
        self._epochs = 0

    def stepped(self, step):
        self.told.append(step)

    def epoch_ended(self, metrics):
        self._epochs += 1
        self.told.append({*metrics})

    def stop(self):
        return "enough" if self._epochs >= self._ends_after else None


def job_with(outputs: Path, trainer=(), callback=(), **tiny):
    config = config_of(outputs, trainer, **tiny)
    config["callback"] = {
        name: {"_target_": f"callback/{name}", **arguments}
        for name, arguments in dict(callback).items()
    }
    return config


def test_a_callback_of_ones_own_is_told_of_steps_and_epochs_and_ends_a_run(tmp_path, capsys):
    Watcher.told.clear()
    trainer = {"validate_every": 2, "max_epochs": 9}
    result = job.train(job_with(tmp_path, trainer, {"test_watcher": {"ends_after": 3}}))
    epochs = [told for told in Watcher.told if isinstance(told, set)]
    assert [each for each in Watcher.told if isinstance(each, int)] == [*range(1, 19)]
    assert epochs == [set(), {"loss", "accuracy"}, set()]
    assert result["epoch"] == 3 and Path(result["run_dir"], "summary.json").exists()
    assert "test_watcher: enough" in capsys.readouterr().out


def test_what_a_checkpoint_lacks_or_has_too_much_is_said_in_a_line(tmp_path, capsys):
    run = job.train(job_with(tmp_path, {"max_epochs": 1}, {"ema": {}}))["run_dir"]
    other = job_with(tmp_path, {"max_epochs": 2, "resume": run}, {"early_stopping": {}})
    job.train(other)
    said = capsys.readouterr().out
    assert "the checkpoint has no callback early_stopping: it begins here\n" in said
    assert "the checkpoint has a callback ema, and this run has none of it\n" in said


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.body.append(self.body[0])  # under two names
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    def forward(self, rows):
        return self.body[1](self.body[0](rows))


def test_an_average_is_torchs_and_has_the_running_figures_of_batch_norm():
    torch.manual_seed(0)
    model = Normed()
    wanted = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.1), use_buffers=False)
    means, mean = [], None
    callback = WeightAverage(model=model, decay=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()
        callback.stepped(step)
        wanted.update_parameters(model)
        now = model.body[1].running_mean.clone()
        mean = now if mean is None else 0.1 * mean + 0.9 * now
        means.append(mean)
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with callback.evaluating():
        found = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name, parameter in wanted.module.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), msg=name)
    torch.testing.assert_close(found["body.1.running_mean"], means[-1])
    assert found["body.1.num_batches_tracked"] == 5
    assert torch.equal(found["mask"], model.mask)
    assert_equal_weights(trained, model.state_dict())
    assert not torch.equal(trained["body.0.weight"], found["body.0.weight"])


def test_the_average_is_what_is_validated_and_saved_and_training_does_not_notice(tmp_path):
    plain = job.train(config_of(tmp_path / "plain"))
    result = job.train(job_with(tmp_path / "ema", callback={"ema": {"decay": 0.9}}))
    run = Path(result["run_dir"])
    saved = checkpoint(run)
    trained = TinyNet(0.0)
    for tensor, held in zip(trained.parameters(), saved["callbacks"]["ema"]["trained"],
                            strict=True):  # fmt: skip
        tensor.data.copy_(held)
    assert_equal_weights(trained.state_dict(), weights(Path(plain["run_dir"])))
    losses = [each["train/loss"] for each in rows(run)]
    assert losses == [each["train/loss"] for each in rows(Path(plain["run_dir"]))]
    averaged = TinyNet(0.0).eval()
    averaged.load_state_dict(saved["model"])
    loader = TinyLoader(config_of(tmp_path), "val", 0, 1)
    batches = [loader.batch(number) for number in range(len(loader))]
    with torch.no_grad():
        loss = sum(
            nn.functional.cross_entropy(averaged(each), each["label"], reduction="sum").item()
            for each in batches
        )
    assert result["val/loss"] == pytest.approx(loss / 20) != pytest.approx(plain["val/loss"])


def scored(callback: EarlyStopping, *scores: float) -> list[bool]:
    ends = []
    for score in scores:
        callback.epoch_ended({"figure": score})
        ends.append(callback.stop() is not None)
    return ends


def test_training_ends_when_the_figure_has_not_become_better():
    def make(higher, **more):
        return EarlyStopping(watched="figure", higher=higher, **more)

    assert scored(make(True, patience=2), 0.1, 0.3, 0.3, 0.2, 0.9) == [0, 0, 0, 1, 0]
    assert scored(make(False, patience=2), 3.0, 2.0, 1.0, 1.0, 2.0) == [0, 0, 0, 0, 1]
    assert scored(make(True, patience=1, min_delta=0.1), 0.1, 0.15, 0.3) == [0, 1, 0]
    nan = float("nan")
    assert scored(make(True, patience=2), nan, nan) == [0, 1]
    assert scored(make(False, patience=2), 1.0, nan, 0.5, nan) == [0, 0, 0, 0]
    unvalidated = make(True, patience=1)
    unvalidated.epoch_ended({})
    assert unvalidated.stop() is None


def test_a_run_that_ended_early_is_finished_until_patience_is_raised(tmp_path, capsys):
    def config(patience, **trainer):
        callback = {"early_stopping": {"patience": patience, "min_delta": 9.0}}
        return job_with(tmp_path, {"max_epochs": 5, **trainer}, callback)

    run = job.train(config(1))["run_dir"]
    assert "was not better than" in (said := capsys.readouterr().out)
    assert "callback.early_stopping.patience=2" in said
    assert job.train(config(1, resume=run))["epoch"] == 2
    assert "was not better than" in capsys.readouterr().out
    other = job.train(config(1, resume="auto"))["run_dir"]
    assert other != run and "is finished; starting a new one" in capsys.readouterr().out
    result = job.train(config(2, resume="auto"))
    assert (result["run_dir"], result["epoch"]) == (other, 3)
    result = job.train(job_with(tmp_path, {"max_epochs": 5, "resume": "auto"}))
    assert (result["run_dir"], result["epoch"]) == (other, 5)


def test_a_profile_of_some_steps_is_written_where_it_says(tmp_path, capsys):
    config = job_with(tmp_path, {"max_epochs": 1}, {"profile": {"wait": 0, "active": 2}})
    run = Path(job.train(config)["run_dir"])
    [file] = (run / "profile").iterdir()
    assert f"callback profile: {file}; open it at" in capsys.readouterr().out
    assert file.name == "step_4.pt.trace.json"
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert {"aten::conv2d", "ProfilerStep#1", "ProfilerStep#2"} <= names


def test_a_run_too_short_to_profile_says_so(tmp_path, caplog):
    callback = Profile(run_dir=tmp_path, rank=0)
    with caplog.at_level(logging.WARNING):
        callback.stepped(1)
        callback.close()
    assert "ended before its step 4" in caplog.text and not [*tmp_path.iterdir()]


def test_a_compiled_model_keeps_the_names_of_its_weights(tmp_path, monkeypatch):
    compiled, compile_in_place = [], nn.Module.compile

    def without_a_compiler(module, **options):
        compiled.append(options)
        compile_in_place(module, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", without_a_compiler)
    plain = job.train(config_of(tmp_path / "plain", {"max_epochs": 2}))
    trainer = {"max_epochs": 2, "compile": "max-autotune"}
    result = job.train(job_with(tmp_path / "compiled", trainer))
    assert compiled == [{"mode": "max-autotune"}]
    assert_equal_weights(weights(Path(plain["run_dir"])), weights(Path(result["run_dir"])))


def test_without_a_compiler_it_is_refused_before_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no_such_compiler")
    with pytest.raises(ValueError, match=r"^trainer.compile: .* there is no no_such_compiler; "):
        job.train(config_of(tmp_path / "runs", {"compile": True}))
    assert not (tmp_path / "runs").exists()
    assert job.train(config_of(tmp_path / "runs", {"compile": False}))["epoch"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_compiled_code_trains_alike_on_any_ranks(tmp_path, ranks):
    plain = job.train(config_of(tmp_path / "plain", {"max_epochs": 2}, dropout=0.0))
    trainer = {"max_epochs": 2, "compile": True, "timeout_s": 500}
    process = start(job_with(tmp_path / "compiled", trainer, {"ema": {}}, dropout=0.0), ranks=ranks)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 0, errors
    saved = checkpoint(the_folder(tmp_path / "compiled"))
    trained = TinyNet(0.0)
    for tensor, held in zip(trained.parameters(), saved["callbacks"]["ema"]["trained"],
                            strict=True):  # fmt: skip
        tensor.data.copy_(held)
    assert_near(trained.state_dict(), weights(Path(plain["run_dir"])))
    assert saved["model"].keys() == trained.state_dict().keys()
