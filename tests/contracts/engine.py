"""What every engine promises: the batches of the inline engine, to the last bit."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.pipeline.loader.worker_errors import LoaderTimeoutError
from penstock.pipeline.samplers.random import RandomSampler
from tests.contracts.equality import untouched_global_states
from tests.pipeline.loader.fakes import FakeDataset, digests, make_loader

N = 53


def check_engine(engine: str, **settings: Any) -> None:
    """Fail unless `engine` gives what the inline engine gives, in every situation."""

    def loader(dataset: Any, **changes: Any) -> Any:
        return make_loader(
            dataset, RandomSampler(N), engine=engine, batch_size=5, **{**settings, **changes}
        )

    dataset = FakeDataset(N, bad=(3, 17, 40))
    epochs = _epochs(make_loader(dataset, RandomSampler(N), batch_size=5), 3)
    assert len({digest for epoch in epochs for digest in epoch}) == 33
    with untouched_global_states(), loader(dataset) as under_test:
        assert _epochs(under_test, 1) == epochs[:1]
        _check_breaking_off(under_test, epochs[1])
        _check_resume(loader(dataset), under_test, epochs[2])
        assert under_test.stats.bad_samples >= 6
    with loader(FakeDataset(N, crash=20)) as crashing:
        with pytest.raises(KeyError, match="a user's mistake") as caught:
            digests(crashing)
        note = "".join(caught.value.__notes__)
        assert "img/0000020.jpg" in note and "position" in note


def check_patience(engine: str, **settings: Any) -> None:
    """Fail unless a batch that takes longer than `timeout_s` ends the run."""
    slow = FakeDataset(8, slow_s=1.0)
    with make_loader(slow, engine=engine, batch_size=2, timeout_s=0.2, **settings) as loader:
        with pytest.raises(LoaderTimeoutError, match="timeout_s"):
            next(iter(loader))


def _epochs(loader: Any, count: int) -> list[list[str]]:
    return [digests(loader) for _ in range(count)]


def _check_breaking_off(loader: Any, expected: list[str]) -> None:
    """An iteration that is abandoned leaves nothing behind for the next one."""
    for steps in (0, 1, 4):
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        assert loader.epoch == 1
    assert digests(loader) == expected
    with pytest.raises(RuntimeError, match="ended when another one began"):
        next(iterator)


def _check_resume(fresh: Any, loader: Any, expected: list[str]) -> None:
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    fresh.load_state_dict(loader.state_dict())
    with fresh:
        assert digests(fresh) == expected[4:]
