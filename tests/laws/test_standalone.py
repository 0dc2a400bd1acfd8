"""The loader in loops of other libraries, by the conventions of Lightning and accelerate."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from penstock import compose
from tests.digests import batch_digest
from tests.laws.runs import INLINE, digests, loader_of, overrides, rest

FORK = {"engine": "torch", "num_workers": 2}


@pytest.fixture(scope="module")
def config(photos):
    return compose(overrides(photos, sampler="weighted"))


@pytest.fixture(scope="module")
def epochs(config):
    return digests(config, epochs=4, **INLINE)


def counted(loader: Any) -> list[str]:
    """Take exactly ``len(loader)`` batches, as Lightning's fetcher does."""
    batches = iter(loader)
    return [batch_digest(next(batches)) for _ in range(len(loader))]


def looking_ahead(loader: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield batches and states one batch behind the loader, as accelerate does."""
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        state = loader.state_dict()
        following = next(batches, None)
        yield batch, state
        batch = following


@pytest.mark.parametrize("way", [INLINE, FORK])
def test_a_loop_that_counts_batches_gets_every_epoch(way, config, epochs):
    with loader_of(config, **way) as loader:
        assert [counted(loader) for _ in range(3)] == epochs[:3]
        assert loader.epoch == 2
        assert rest(loader) == epochs[3]


@pytest.mark.parametrize("way", [INLINE, FORK])
def test_a_loop_that_looks_ahead_gets_unchanged_batches_and_exact_states(way, config, epochs):
    with loader_of(config, **way) as loader:
        kept = [(batch, json.dumps(state)) for batch, state in looking_ahead(loader)]
        assert [batch_digest(batch) for batch, _ in kept] == epochs[0], "kept, and not written to"
        assert [batch_digest(batch) for batch, _ in looking_ahead(loader)] == epochs[1]
    for step, (_, state) in enumerate(kept, start=1):
        with loader_of(config, **INLINE) as loader:
            loader.load_state_dict(json.loads(state))
            assert rest(loader) == epochs[0][step:]


def test_an_unused_iterator_takes_no_batch(config, epochs):
    with loader_of(config, **INLINE) as loader:
        rest(loader, 3)
        state = loader.state_dict()
    with loader_of(config, **INLINE) as loader:
        loader.load_state_dict(state)
        iter(loader)
        assert loader.state_dict() == state
        assert rest(loader) == epochs[0][3:], "a second iter keeps the loaded place"
        iter(loader)
        assert rest(loader) == epochs[1], "and does not skip an epoch"


def test_an_epoch_may_be_set_after_iter(config, epochs):
    with loader_of(config, **INLINE) as loader:
        batches = iter(loader)
        loader.set_epoch(2)
        assert [batch_digest(batch) for batch in batches] == epochs[2]
        assert loader.epoch == 2
        assert rest(loader) == epochs[3]


def test_an_epoch_set_during_the_last_batch_is_the_next(config, epochs):
    with loader_of(config, **INLINE) as loader:
        for number, _ in enumerate(loader, start=1):
            if number == len(loader):
                loader.set_epoch(1)
        assert (loader.state_dict()["epoch"], loader.state_dict()["next_batch"]) == (1, 0)
        assert rest(loader) == epochs[1]
        assert rest(loader) == epochs[2]


def test_a_plain_loop_killed_after_every_third_batch(config, epochs):
    """The loop of the README, resumed in a new loader each time."""
    seen: list[list[str]] = [[], [], []]
    state = None
    while sum(map(len, seen)) < 27:
        with loader_of(config, **INLINE) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(state))
            handed = 0
            for epoch in range(loader.epoch, 3):
                loader.set_epoch(epoch)
                for batch in islice(loader, 3 - handed):
                    seen[epoch].append(batch_digest(batch))
                    state = json.dumps(loader.state_dict())
                    handed += 1
                if handed == 3:
                    break
    assert seen == epochs[:3]


def test_len_counts_the_whole_epoch_at_any_place(config):
    with loader_of(config, **INLINE) as loader:
        rest(loader, 4)
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert len(loader) == 9
        assert hasattr(loader, "batch_size") and loader.batch_size == 6


def test_closing_or_loading_ends_the_current_iteration(config, epochs):
    with loader_of(config, **FORK) as loader:
        for end in (loader.close, lambda: loader.load_state_dict(loader.state_dict())):
            batches = iter(loader)
            next(batches)
            end()
            with pytest.raises(RuntimeError, match="ended when another one began"):
                next(batches)
        assert rest(loader) == epochs[0][1:]
