"""The full product: every content with threads, and a share with the other engines."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from penstock import compose
from tests.laws.pairs import Case
from tests.laws.runs import ENGINES, INLINE, digests, overrides, way
from tests.laws.test_equality import CONTENT, DATASETS, WAYS, stackable

CONTENTS = [
    content
    for levels in product(*CONTENT.values())
    if stackable(content := dict(zip(CONTENT, levels, strict=True)))
]
RUNS = [
    {name: level for name, level in zip(WAYS, levels, strict=True) if name != "engine"}
    for levels in product(*WAYS.values())
]
ONE_IN = 16
"""Share of contents for engines that start processes: all of them would take days."""


def cases(engine: str, dataset: str) -> list[tuple[Case, dict[str, Any]]]:
    """Return contents, each with one of the ways to run, taken in strides."""
    contents = [content for content in CONTENTS if content["dataset"] == dataset]
    # A component that draws from global random states runs in processes with any engine.
    starts_processes = engine != "threads" or dataset in ("torch", "mix")
    taken = contents[ENGINES.index(engine) :: ONE_IN] if starts_processes else contents
    return [(content, RUNS[37 * number % len(RUNS)]) for number, content in enumerate(taken)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_content_by_every_engine(engine, dataset, photos, packed):
    different = []
    for content, run in cases(engine, dataset):
        config = compose(overrides(photos, packed, **content))
        if digests(config, **way(engine, **run)) != digests(config, **INLINE):
            different.append((content, run))
    assert different == []
