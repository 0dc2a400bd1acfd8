"""Small batches made together: each is what it would be alone, and so is what goes wrong."""

from __future__ import annotations

import gc
import time
from itertools import accumulate, pairwise
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.contracts import Collate
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.loader import memory
from penstock.pipeline.loader.compute import bundles
from penstock.pipeline.loader.compute.bundles import row_bytes
from penstock.pipeline.loader.digest import batch_digest
from penstock.pipeline.loader.faults import BadSampleError
from penstock.pipeline.samplers.sequential import SequentialSampler
from tests.pipeline.loader.bundled import (
    ALONE,
    PROCESS,
    THREADS,
    Arrays,
    N,
    dataset,
)
from tests.pipeline.loader.fakes import make_loader
from tests.pipeline.loader.staged import FakeAccelerator


@settings(max_examples=25, deadline=None)
@given(
    batch_size=st.integers(1, 70),
    world_size=st.integers(1, 3),
    tail=st.sampled_from([True, False, "pad"]),
    start=st.integers(0, 5),
    most=st.integers(0, 3),
    where=st.sampled_from([THREADS]),
)
def test_batches_are_those_that_are_made_alone(
    arrays_folder, batch_size, world_size, tail, start, most, where
):
    """Of every rank, from any batch on, over the end of an epoch, whatever a bundle may hold."""
    for rank in range(min(world_size, batch_size)):
        share = {"batch_size": batch_size, "world_size": world_size, "rank": rank}
        share["drop_last"] = tail
        found = []
        for ways in (ALONE, where):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(f"{bundles.__name__}.BUNDLE_BYTES", 10_000 * most)
                with make_loader(dataset(Arrays(arrays_folder)), **{**ways, **share}) as loader:
                    first = min(start, len(loader))
                    loader.load_state_dict({**loader.state_dict(), "next_batch": first})
                    found.append([])
                    for _ in range(2):
                        for batch in loader:
                            found[-1].append((batch_digest(batch), loader.state_dict()))
        assert found[0] == found[1]
        assert found[0]


def test_bundles_grow_to_sixteen_and_to_their_bytes(arrays_folder, monkeypatch):
    storage = Arrays(arrays_folder)
    one = {**THREADS, "num_workers": 1, "across_epochs": False}
    with make_loader(dataset(storage), batch_size=1, **one) as loader:
        assert len(list(loader)) == N
    grown = storage.taken[storage.taken.index(2) :]
    assert set(storage.taken[: -len(grown)]) == {1}
    assert grown[:3] == [2, 4, 8] and set(grown[3:-1]) == {16}

    held = row_bytes(next(iter(make_loader(dataset(storage), batch_size=1, **ALONE))))
    assert held == 8 * 6 * 3 + 3 * 4 + 8 * 4 + 1, "label, index, position and epoch; valid"
    monkeypatch.setattr("penstock.pipeline.loader.compute.bundles.BUNDLE_BYTES", 75 * held)
    for batch_size, most in ((30, 60), (37, 74), (38, 38), (80, 80)):
        storage = Arrays(arrays_folder)
        with make_loader(dataset(storage), batch_size=batch_size, **THREADS) as loader:
            assert sum(len(batch["label"]) for batch in loader) == N
        assert most <= max(storage.taken) <= max(75, batch_size), "the last one may be short"


def test_what_is_computed_here_is_not_bundled(arrays_folder):
    storage = Arrays(arrays_folder)
    with make_loader(dataset(storage), batch_size=4, **{**THREADS, "num_workers": 0}) as loader:
        assert len(list(loader)) == len(storage.taken)


@pytest.mark.parametrize("ways", [THREADS, PROCESS], ids=["threads", "process"])
@pytest.mark.parametrize("on_error", ["replace", "skip"])
def test_a_bad_row_is_that_of_its_batch_alone(arrays_folder, on_error, tmp_path, ways):
    given = {"batch_size": 3, "on_error": on_error, "max_error_rate": 1.0}
    seen, listed = [], []
    for name, used in (("alone", ALONE), ("together", ways)):
        path = tmp_path / f"{name}.csv"
        loader = make_loader(
            dataset(Arrays(arrays_folder, bad=200)), bad_samples_path=path, **given, **used
        )
        with loader:
            seen.append([batch_digest(batch) for batch in loader])
            assert loader.stats.bad_samples == 1
        listed.append(path.read_text())
    assert seen[0] == seen[1]
    assert listed[0] == listed[1]
    assert "a flipped bit" in listed[0]


class Halt(BaseException):
    """Nothing that ``except Exception`` catches."""


@pytest.mark.parametrize("ways", [THREADS, PROCESS], ids=["threads", "process"])
@pytest.mark.parametrize(
    ("broken", "error"),
    [
        ({"broken": 200}, OSError),
        ({"broken": 200, "error": Halt}, Halt),
        ({"bad": 200}, BadSampleError),
    ],
)
def test_what_comes_before_an_error_is_delivered_first(arrays_folder, broken, error, ways):
    with make_loader(
        dataset(Arrays(arrays_folder, **broken)), batch_size=3, on_error="raise", **ways
    ) as loader:
        seen = []
        with pytest.raises(error, match=r"200|flipped"):
            for batch in loader:
                seen += batch["index"].tolist()
        assert seen == list(range(198)), "the row is in the batch that begins there"


class Stopping(SequentialSampler):
    def indices(self, epoch, start, stop):
        if stop > 150:
            raise RuntimeError("no more")
        return super().indices(epoch, start, stop)


def test_what_comes_before_an_error_of_the_sampler_is_delivered_first(arrays_folder):
    with make_loader(
        dataset(Arrays(arrays_folder)), Stopping(N), batch_size=4, **THREADS
    ) as loader:
        seen = 0
        with pytest.raises(RuntimeError, match="no more"):
            for batch in loader:
                seen += len(batch["label"])
        assert seen == 148


@pytest.mark.parametrize("ways", [THREADS, PROCESS], ids=["threads", "process"])
def test_a_position_that_is_known_to_kill_is_in_no_bundle(arrays_folder, ways):
    storage = Arrays(arrays_folder)
    with make_loader(dataset(storage), batch_size=5, **ways) as loader:
        state = loader.state_dict()
        loader.load_state_dict({**state, "quarantined": [152]})
        digests = [batch_digest(batch) for batch in loader]
        assert loader.stats.bad_samples == 1
    with make_loader(dataset(Arrays(arrays_folder)), batch_size=5, **ALONE) as loader:
        loader.load_state_dict({**state, "quarantined": [152]})
        assert digests == [batch_digest(batch) for batch in loader]


@pytest.mark.parametrize("ways", [THREADS, PROCESS], ids=["threads", "process"])
@pytest.mark.parametrize("locked", [False, True], ids=["ordinary", "page-locked"])
def test_batches_that_are_kept_are_never_overwritten(arrays_folder, monkeypatch, locked, ways):
    alone = make_loader(dataset(Arrays(arrays_folder)), **ALONE)
    expected = [batch_digest(batch) for _ in range(3) for batch in alone]
    accelerator = FakeAccelerator()
    with make_loader(dataset(Arrays(arrays_folder)), **ways) as loader:
        if locked:
            monkeypatch.setattr(memory, "_LEAST_BYTES", 1)
            loader.page_lock(accelerator)
        kept = [batch for _ in range(3) for batch in loader]
        assert [batch_digest(batch) for batch in kept] == expected
    kept[0]["image"].zero_()
    assert [batch_digest(batch) for batch in kept[1:]] == expected[1:]
    if ways is THREADS:
        places = sorted(batch["image"].data_ptr() for batch in kept)
        gaps = [after - before for before, after in pairwise(places)]
        assert kept[0]["image"].nbytes in gaps, "several share their memory"
    assert bool(accelerator.locked) == locked
    del kept, loader
    gc.collect()
    assert not accelerator.locked


def test_the_next_bundle_is_computed_as_soon_as_one_is_begun(arrays_folder):
    storage = Arrays(arrays_folder)
    one = {**THREADS, "num_workers": 1, "prefetch_factor": 1, "batch_size": 1}
    with make_loader(dataset(storage), **one) as loader:
        iterator = iter(loader)
        for number in range(40):
            next(iterator)
            if number in accumulate(storage.taken[3:], initial=sum(storage.taken[:3])):
                bundles = list(accumulate(storage.taken)).index(number) + 1
                deadline = time.monotonic() + 120
                while len(storage.taken) < bundles + 2:
                    assert time.monotonic() < deadline, "it waits for the rest of this bundle"
                    time.sleep(0.001)


class _WithMoreNames(Collate):
    """A collate whose batches have a list that is not one of rows."""

    names: ClassVar = {"names": ["one", "too", "many"] * 100}

    columnar = True

    def __call__(self, samples):
        return {**stack(samples), **self.names}

    def columns(self, columns):
        return {**stack.columns(columns), **self.names}


def test_what_cannot_be_cut_is_made_alone(arrays_folder):
    ways = {**THREADS, "collate": _WithMoreNames(), "batch_size": 2}
    with make_loader(dataset(Arrays(arrays_folder)), **ways) as loader:
        assert loader._compute.way == "columns"
        assert [batch["index"].tolist() for batch in loader][:3] == [[0, 1], [2, 3], [4, 5]]
