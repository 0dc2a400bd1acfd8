"""Runs that go on with other values of the optimizer and its schedule than they began with."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from penstock.pipeline.training import job, parts
from penstock.pipeline.training.given_values import given_values, load_with_given, values_of
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import checkpoint, rows


def built(make_optimizer, make_scheduler=None, schedule=()):
    """Optimizer, scheduler, and what they were given."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer([weight])
    groups = values_of(optimizer)
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    return optimizer, scheduler, given_values(groups, scheduler, dict(schedule))


def stepped(parts, count, metric=None):
    optimizer, scheduler, _ = parts
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones(3)
        optimizer.step()
        if scheduler is not None:
            scheduler.step(*([] if metric is None else [metric]))
    return rates


def content_of(parts):
    optimizer, scheduler, given = parts
    return copy.deepcopy({
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler else None,
        "given": given.state_dict(),
    })  # fmt: skip


def went_on(parts, content, count):
    load_with_given(*parts[:2], content, parts[2], count=count)
    return parts


def sgd(**values):
    return lambda params: SGD(params, **{"lr": 0.1, "momentum": 0.9, **values})


def adamw(**values):
    return lambda params: AdamW(params, **{"lr": 0.002, **values})


def test_changed_values_win_and_what_was_learned_stays():
    first = built(adamw())
    stepped(first, 5)
    changed = went_on(built(adamw(lr=0.5, weight_decay=0.9)), content_of(first), 5)
    (group,) = changed[0].param_groups
    assert group["lr"] == 0.5 and group["weight_decay"] == 0.9 and group["betas"] == (0.9, 0.999)
    (state,) = changed[0].state_dict()["state"].values()
    assert state["step"] == 5 and state["exp_avg"].ne(0).all()


def test_only_what_changed_is_taken():
    first = built(adamw())
    stepped(first, 1)
    first[0].param_groups[0]["told"] = 7  # what an optimizer counts there
    (group,) = went_on(built(adamw(weight_decay=0.9)), content_of(first), 1)[0].param_groups
    assert group["told"] == 7 and group["lr"] == 0.002 and group["weight_decay"] == 0.9


SCHEDULES = {
    "steps": lambda o: StepLR(o, 3, 0.5),
    "milestones": lambda o: MultiStepLR(o, [2, 9], 0.3),
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (step + 1)),
    "cosine": lambda o: CosineAnnealingLR(o, 12, 0.001),
    "cycle": lambda o: OneCycleLR(o, 1.0, total_steps=20),
}


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_unchanged_values_go_on_to_the_bit(make):
    whole = built(sgd(), make)
    expected = stepped(whole, 12)
    first = built(sgd(), make)
    stepped(first, 7)
    again = went_on(built(sgd(), make), content_of(first), 7)
    assert again[0].state_dict()["param_groups"] == first[0].state_dict()["param_groups"]
    assert stepped(again, 5) == expected[7:]


OTHERS = {
    "lr": (lambda o: StepLR(o, 3, 0.5), lambda o: StepLR(o, 3, 0.5), 0.4),
    "gamma": (lambda o: StepLR(o, 3, 0.5), lambda o: StepLR(o, 3, 0.9), 0.1),
    "milestones": (lambda o: MultiStepLR(o, [2]), lambda o: MultiStepLR(o, [5, 9]), 0.1),
    "a longer cosine": (
        lambda o: CosineAnnealingLR(o, 7), lambda o: CosineAnnealingLR(o, 14), 0.1,
    ),
    "a longer cycle": (
        lambda o: OneCycleLR(o, 1.0, total_steps=8), lambda o: OneCycleLR(o, 1.0, total_steps=16),
        0.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "other", "lr"), OTHERS.values(), ids=OTHERS)
def test_a_changed_schedule_stands_where_it_would_have_come(make, other, lr):
    whole = built(sgd(lr=lr), other)
    expected = stepped(whole, 12)
    first = built(sgd(), make)
    stepped(first, 7)
    again = went_on(built(sgd(lr=lr), other), content_of(first), 7)
    assert stepped(again, 5) == expected[7:]
    assert again[0].state_dict()["param_groups"] == whole[0].state_dict()["param_groups"]


def test_values_that_a_function_hides_are_told_by_the_config():
    def falling(length):
        return lambda o: LambdaLR(o, lambda step: max(0.0, 1 - step / length))

    first = built(sgd(), falling(5), {"total_steps": 5})
    stepped(first, 5)
    again = went_on(built(sgd(), falling(10), {"total_steps": 10}), content_of(first), 5)
    assert stepped(again, 2) == pytest.approx([0.05, 0.04])


def test_a_plateau_keeps_what_it_has_seen():
    def plateau(**values):
        return lambda o: ReduceLROnPlateau(o, **{"mode": "max", "patience": 1, **values})

    first = built(sgd(), plateau())
    stepped(first, 4, metric=0.8)  # one fall, and one bad epoch since
    assert first[0].param_groups[0]["lr"] == pytest.approx(0.01)
    content = content_of(first)
    again = went_on(built(sgd(), plateau()), content, 4)
    assert content_of(again)["scheduler"] == content["scheduler"]
    assert again[0].param_groups[0]["lr"] == first[0].param_groups[0]["lr"]
    other = went_on(built(sgd(lr=0.5), plateau(factor=0.5)), content, 4)
    assert other[1].best == 0.8 and other[1].num_bad_epochs == 1 and other[1].factor == 0.5
    assert stepped(other, 2, metric=0.1) == pytest.approx([0.05, 0.025])


def test_a_schedule_that_ends_before_is_refused():
    first = built(sgd(), lambda o: OneCycleLR(o, 1.0, total_steps=20))
    stepped(first, 9)
    short = built(sgd(), lambda o: OneCycleLR(o, 1.0, total_steps=5))
    with pytest.raises(ValueError, match="total steps is 5"):
        went_on(short, content_of(first), 9)


@pytest.mark.usefixtures("tiny_parts")
def test_a_run_goes_on_with_the_values_that_were_changed(tmp_path, capsys):
    trainer = {"max_steps": 6, "max_epochs": None, "log_every": 1}
    run = Path(job.train(config_of(tmp_path, trainer))["run_dir"])
    trainer = {**trainer, "max_steps": 12, "resume": str(run)}
    capsys.readouterr()
    job.train(config_of(tmp_path, trainer, lr=0.02, momentum=0.5))
    said = capsys.readouterr().out
    assert "goes on with lr=0.02 (was 0.1), momentum=0.5 (was 0.9)" in said
    (group,) = checkpoint(run)["optimizer"]["param_groups"]
    assert group["momentum"] == 0.5 and group["initial_lr"] == 0.02
    straight = job.train(config_of(tmp_path / "b", {**trainer, "resume": None}, lr=0.02))
    rates, expected = ([row["lr"] for row in rows(Path(f))] for f in (run, straight["run_dir"]))
    assert rates[-7:] == expected[-7:], "those of a run that had them from its beginning"


@pytest.mark.usefixtures("tiny_parts")
def test_values_that_were_changed_stay_changed(tmp_path):
    run = Path(job.train(config_of(tmp_path, {"max_epochs": 1}))["run_dir"])
    for epochs in (2, 3):
        job.train(config_of(tmp_path, {"max_epochs": epochs, "resume": str(run)}, momentum=0.5))
        assert checkpoint(run)["optimizer"]["param_groups"][0]["momentum"] == 0.5


@pytest.mark.usefixtures("tiny_parts")
def test_another_model_is_one_whole_line(tmp_path, monkeypatch):
    run = Path(job.train(config_of(tmp_path, {"max_epochs": 1}))["run_dir"])
    wide = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3))
    other = torch.nn.ModuleDict({"body": wide, "head": torch.nn.Linear(9, 3)})
    for model, said in (
        (other, r"there is no body\.1\.weight in it, which the model has"),
        (torch.nn.ModuleDict({"head": torch.nn.Linear(9, 3)}),
         r"head\.weight is \[3, 8\] in it and \[3, 9\] in the model"),
        (torch.nn.ModuleDict({"head": torch.nn.Linear(8, 3)}),
         r"there is a body\.0\.weight in it, which the model has not"),
    ):  # fmt: skip
        monkeypatch.setattr(parts, "build_model", lambda *_, model=model, **__: model)
        with pytest.raises(ValueError, match=rf"^checkpoint: .*: {said}; give the .*=null$"):
            job.train(config_of(tmp_path, {"resume": str(run)}))
