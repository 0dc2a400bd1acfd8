"""Python's, NumPy's and torch's global random states are neither read nor changed."""

from __future__ import annotations

from itertools import islice

import pytest
import rich.style  # noqa: F401 - its import draws

from penstock import compose
from tests.contracts.equality import seed_globals, untouched_global_states
from tests.laws.runs import (
    AUGMENTS,
    DATASETS,
    INLINE,
    NOISE,
    SAMPLERS,
    WITH_TORCH,
    digests,
    loader_of,
    overrides,
)

FORK = {"engine": "torch", "num_workers": 2}


@pytest.mark.parametrize("way", [INLINE, FORK], ids=["inline", "fork"])
@pytest.mark.parametrize(
    ("dataset", "sampler", "augment"),
    [
        (DATASETS[number % len(DATASETS)], list(SAMPLERS)[number % len(SAMPLERS)], augment)
        for number, augment in enumerate([*AUGMENTS, *AUGMENTS])
    ],
)
def test_iterating_neither_reads_nor_changes_them(dataset, sampler, augment, way, photos, packed):
    content = {"dataset": dataset, "sampler": sampler, "augment": augment, "collate": "pad"}
    config = compose(overrides(photos, packed, **content))
    given = []
    for seed in (1, 2):
        seed_globals(seed)
        with untouched_global_states():
            given.append(digests(config, **way))
    assert given[0] == given[1], "the global states were read"


@pytest.mark.parametrize("way", [INLINE, FORK], ids=["inline", "fork"])
def test_a_component_that_draws_from_them_leaves_them_unchanged(way, photos):
    config = compose([*overrides(photos), *NOISE])
    with untouched_global_states():
        digests(config, **way)


def test_breaking_off_and_resuming_leave_them_unchanged(photos):
    config = compose(overrides(photos, sampler="without"))
    with untouched_global_states(), loader_of(config, **FORK) as loader:
        list(islice(loader, 2))
        loader.load_state_dict(loader.state_dict())
        list(islice(loader, 2))


def test_a_stream_leaves_them_unchanged(photos):
    data = [WITH_TORCH, "dataset=torch", "sampler=sequential"]
    data += ["dataset.target=tests.laws.torch_components.PhotoStream", "augment=light"]
    data += [f"dataset.args={{root: {photos}/train}}", "loader.batch_size=6"]
    config = compose([*data, "dataset.val_fraction=0", "loader.max_error_rate=1"])
    given = []
    for seed in (1, 2):
        seed_globals(seed)
        with untouched_global_states():
            given += [digests(config, **INLINE), digests(config, **FORK)]
    assert given[0] == given[1] == given[2] == given[3]
    assert given[0][0] != given[0][1], "epochs differ"
