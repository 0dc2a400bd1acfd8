"""Contract of an engine: the batches of the inline engine, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from penstock import build_loader, compose
from tests.contracts.equality import untouched_global_states
from tests.contracts.noise import typed
from tests.digests import batch_digest

N = 53
BAD = (3, 17, 40)


def check_engine(engine: str, **settings: Any) -> None:
    """Compare an engine with the inline engine: epochs, breaking off, resuming, faults.

    Args:
        engine: Name of the registered engine.
        **settings: Settings of the loader.
    """
    settings = {"engine": engine, **settings}
    inline = {"engine": "inline", "num_workers": 0}
    epochs = _epochs(_loader(inline, bad=BAD), 3)
    assert len({digest for epoch in epochs for digest in epoch}) == 33
    with untouched_global_states(), _loader(settings, bad=BAD) as under_test:
        assert _epochs(under_test, 1) == epochs[:1]
        _check_breaking_off(under_test, epochs[1])
        _check_resume(_loader(settings, bad=BAD), under_test, epochs[2])
        assert under_test.stats.bad_samples >= 6
    with _loader(settings, crash=20) as crashing:
        with pytest.raises(KeyError, match="a user's mistake") as caught:
            _digests(crashing)
        note = "".join(caught.value.__notes__)
        assert "img/0000020.jpg" in note and "position" in note


def check_patience(engine: str, **settings: Any) -> None:
    """Check that a batch that takes longer than `timeout_s` ends the run."""
    settings = {"engine": engine, "batch_size": 2, "timeout_s": 0.2, **settings}
    with _loader(settings, count=8, sleep_s=0.5) as loader:
        with pytest.raises(RuntimeError, match="timeout_s"):
            next(iter(loader))


def _loader(settings: dict[str, Any], *, count: int = N, **faults: Any) -> Any:
    config = compose(typed(count, **faults))
    return build_loader({**config, "loader": {**config["loader"], "batch_size": 5, **settings}})


def _digests(loader: Any) -> list[str]:
    return [batch_digest(batch) for batch in loader]


def _epochs(loader: Any, count: int) -> list[list[str]]:
    return [_digests(loader) for _ in range(count)]


def _check_breaking_off(loader: Any, expected: list[str]) -> None:
    """Check that an abandoned iteration leaves no trace in the next one."""
    for steps in (0, 1, 4):
        iterator = iter(loader)
        for _ in range(steps):
            next(iterator)
        assert loader.epoch == 1
    assert _digests(loader) == expected
    with pytest.raises(RuntimeError, match="ended when another one began"):
        next(iterator)


def _check_resume(fresh: Any, loader: Any, expected: list[str]) -> None:
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    fresh.load_state_dict(loader.state_dict())
    with fresh:
        assert _digests(fresh) == expected[4:]
