"""When checkpoints are due, and what comes back with one."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.schedulers.warmup import Warmup
from penstock.pipeline.training import recorder as recorder_module
from penstock.pipeline.training.checkpoint import RunState, random_states, restore_random_states
from penstock.pipeline.training.distributed.ddp import DataParallel
from penstock.pipeline.training.distributed.world import World
from penstock.pipeline.training.given_values import given_values, values_of
from penstock.pipeline.training.hooks import Hooks
from penstock.pipeline.training.parts import Parts
from penstock.pipeline.training.recorder import Recorder
from tests.pipeline.training.tiny_job import TinyLoader, config_of, settings_of


def recorder_of(folder, trainer=(), *, rank=0, scheduler=None):
    config = config_of(folder, {"num_threads": None, **dict(trainer)})
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts = Parts(
        model=model,
        shared=model,
        strategy=DataParallel(World(rank, 1, torch.device("cpu"))),
        task=None,
        optimizer=optimizer,
        scheduler=scheduler,
        interval="step",
        warmup=Warmup(0),
        given=given_values(values_of(optimizer), scheduler, {}),
        hooks=Hooks({}, World(rank, 1, torch.device("cpu"))),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        train=DeviceQueue(TinyLoader(config, "train", 0, 1), "cpu"),
        val=None,
        num_batches=6,
    )
    return Recorder(
        parts,
        RunState(),
        World(rank, 1, torch.device("cpu")),
        settings=settings_of(config),
        run_dir=folder,
        loggers={},
        progress=None,
        draw_batch=None,
    )


def newest(recorder):
    return recorder.checkpoints.load_newest()[1]


def test_a_checkpoint_by_time_is_for_rank_0_to_decide_and_its_time_begins_anew(
    tmp_path, monkeypatch
):
    now = 100.0
    monkeypatch.setattr(recorder_module, "time", SimpleNamespace(monotonic=lambda: now))
    trainer = {"checkpoint_every": None, "checkpoint_seconds": 60}
    main, other = (recorder_of(tmp_path, trainer, rank=rank) for rank in (0, 1))
    assert not main.save_due()
    now += 61
    assert main.save_due() and not other.save_due()
    main.save()
    assert not main.save_due()


def test_the_number_of_threads_comes_back(tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        saved = recorder_of(tmp_path)
        saved.save()
        torch.set_num_threads(2)
        recorder_of(tmp_path).restore(newest(saved))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_every_global_random_state_comes_back():
    before = random_states()
    try:
        np.random.normal()  # drawn in pairs: the other one is kept for the next call
        random.gauss(0, 1)
        states = random_states()
        draws = [random.gauss(0, 1), random.random(), np.random.normal(), torch.rand(1)]
        restore_random_states(states)
        assert [random.gauss(0, 1), random.random(), np.random.normal(), torch.rand(1)] == draws
    finally:
        restore_random_states(before)


class Scheduler:
    """A user's own, with anything in its state."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (Scheduler(), None, "it has a scheduler, this run has none; give the same scheduler"),
        (None, Scheduler(), "it has no scheduler, this run has one; give the same scheduler"),
    ],
)
def test_a_scheduler_too_many_or_too_few_is_told(tmp_path, then, now, said):
    saved = recorder_of(tmp_path, scheduler=then)
    saved.save()
    with pytest.raises(ValueError, match=said):
        recorder_of(tmp_path, scheduler=now).restore(newest(saved))


def test_a_state_that_no_resume_could_read_is_told_at_the_first_checkpoint(tmp_path):
    recorder = recorder_of(tmp_path, scheduler=Scheduler(curve=SimpleNamespace))
    with pytest.raises(ValueError, match="cannot be read"):
        recorder.save()
    assert not recorder.checkpoints.exists()


def test_a_score_that_is_no_number_is_never_the_best():
    state, nan = RunState(), float("nan")
    assert not state.is_better(nan, higher=True)
    state.best = 0.5
    assert not state.is_better(nan, higher=False)
    assert state.is_better(0.6, higher=True) and state.is_better(0.4, higher=False)
