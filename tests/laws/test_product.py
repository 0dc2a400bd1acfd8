"""The full product: every content by every way to run, in one set of workers for each way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from pipeline import compose
from pipeline.digest import batch_digest
from pipeline.loader.contract import BatchTask, Delivery
from pipeline.loader.engines.torch import TorchEngine
from pipeline.loader.settings import LoaderSettings
from tests.laws.runs import INLINE, digests, loader_of, overrides
from tests.laws.test_equality import CONTENT, WAYS, stackable

CONTENTS = [
    content
    for levels in product(*CONTENT.values())
    if stackable(content := dict(zip(CONTENT, levels, strict=True)))
]
RUNS = [dict(zip(WAYS, levels, strict=True)) for levels in product(*WAYS.values())]
_PLACES = 1_000


class Everything:
    """The batch computers of all contents as one: a task's number says whose it is.

    Starting workers anew for each of 15,000 combinations would take a day.
    """

    imports = ("tests.laws.components",)

    def __init__(self, computers: list[Any]) -> None:
        self._computers = computers

    def __call__(self, task: BatchTask) -> Delivery:
        content, number = divmod(task.number, _PLACES)
        done = self._computers[content](replace(task, number=number))
        return replace(done, number=task.number)


@pytest.fixture(scope="module")
def everything(photos, packed) -> Iterator[tuple[list[Any], list[Any]]]:
    """A loader for each content, and the hashes that the inline engine gives."""
    configs = [compose(overrides(photos, packed, **content)) for content in CONTENTS]
    loaders = [loader_of(config, **INLINE) for config in configs]
    yield loaders, [digests(config, **INLINE) for config in configs]
    for loader in loaders:
        loader.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run.values())))
def test_every_content_by_every_way_to_run(run, everything):
    loaders, expected = everything
    engine = TorchEngine(
        Everything([loader._compute for loader in loaders]),
        LoaderSettings(engine="torch", max_error_rate=1.0, **run),
    )
    try:
        for epoch in range(2):
            tasks = (
                replace(task, number=content * _PLACES + task.number)
                for content, loader in enumerate(loaders)
                for task in loader._tasks(epoch=epoch, start=0, quarantine=frozenset())
            )
            hashes: list[list[str]] = [[] for _ in loaders]
            for delivery in engine.run(tasks):
                content, number = divmod(delivery.number, _PLACES)
                assert number == len(hashes[content])
                hashes[content].append(batch_digest(delivery.batch))
            different = [
                CONTENTS[content]
                for content, given in enumerate(hashes)
                if given != expected[content][epoch]
            ]
            assert different == [], f"epoch {epoch}"
    finally:
        engine.close()
