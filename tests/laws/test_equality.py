"""The same batches for any engine, workers, start method, persistence and prefetching."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch

from penstock import compose
from tests.laws.pairs import Case, pairwise
from tests.laws.runs import (
    AUGMENTS,
    COLLATES,
    DATASETS,
    ENGINES,
    INLINE,
    NOISE,
    OF_SOURCES,
    SAMPLERS,
    digests,
    loader_of,
    overrides,
    way,
)
from tests.shares import in_turn

CONTENT = {
    "dataset": DATASETS,
    "sampler": tuple(name for name in SAMPLERS if name != "mix"),
    "collate": tuple(COLLATES),
    "augment": tuple(AUGMENTS),
}
WAYS = {
    "engine": ENGINES,
    "num_workers": (0, 1, 2, 3, 7),
    "multiprocessing_context": ("forkserver", "spawn"),
    "persistent_workers": (True, False),
    "prefetch_factor": (1, 3),
}


def stackable(case: Case) -> bool:
    """Return whether images of one size are collated, or the collate takes several sizes."""
    return (case.get("augment"), case.get("collate")) != ("ragged", "stack")


def quick(case: Case) -> bool:
    """Return whether a case starts at most two spawned workers, each of which takes seconds."""
    many_spawned = case.get("num_workers", 0) > 2 and case.get("multiprocessing_context") == "spawn"
    return stackable(case) and not many_spawned


ALONE = {**CONTENT, **WAYS, "dataset": tuple(name for name in DATASETS if name != "mix")}
MIXED = pairwise({**CONTENT, **WAYS, "dataset": ("mix",), "sampler": OF_SOURCES}, quick)
CASES = [
    *in_turn(pairwise(ALONE, quick), every=4),
    *MIXED[:2],
    *(pytest.param(case, marks=pytest.mark.slow) for case in MIXED[2:]),
]


@pytest.fixture(scope="module")
def expected(photos, packed):
    """Return config and hashes of two epochs by the inline engine, by content."""

    @lru_cache
    def of(content: tuple[tuple[str, str], ...]) -> Any:
        config = compose(overrides(photos, packed, **dict(content)))
        return config, digests(config, **INLINE)

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_every_way_to_run_gives_the_batches_of_the_inline_engine(case, expected):
    content = tuple((name, case[name]) for name in CONTENT)
    config, hashes = expected(content)
    assert digests(config, **way(**{name: case[name] for name in WAYS})) == hashes
    first, second = hashes
    assert len(first) == len(second) == len({*first}) >= 6
    if case["sampler"] not in ("sequential", "inference") or case["augment"] != "none":
        assert not {*first} & {*second}, "epochs differ"


@pytest.mark.parametrize(("dataset", "engine"), in_turn([*DATASETS], ENGINES, every=4))
def test_every_way_to_run_gives_the_same_evaluation(dataset, engine, expected, photos, packed):
    config = compose(overrides(photos, packed, dataset=dataset, sampler="weighted"))
    changes = {"split": "val", "epochs": 3}
    first, *again = digests(config, **changes, **INLINE)
    # `val_fraction=0` leaves nothing of a torch dataset for evaluation.
    assert len(first) == {"torch": 0, "mix": 5}.get(dataset, 3)
    assert again == [first, first]
    assert digests(config, **changes, **way(engine)) == [first] * 3


@pytest.mark.parametrize("dataset", ["image_folder", "eager", "lmdb", "webdataset"])
def test_storages_of_the_same_photographs_give_the_same_pixels(dataset, expected):
    def content(name: str) -> tuple[tuple[str, str], ...]:
        return tuple({"dataset": name, "sampler": "weighted", "augment": "strong"}.items())

    assert expected(content(dataset))[1] == expected(content("image_folder"))[1]


def test_each_draw_of_a_record_has_its_own_augmentation(photos):
    config = compose(overrides(photos, sampler="weighted", augment="strong"))
    images: dict[int, list[Any]] = {}
    with loader_of(config, **INLINE) as loader:
        for batch in loader:
            for index, image in zip(batch["index"].tolist(), batch["image"], strict=True):
                images.setdefault(index, []).append(image)
    repeats = [copies for copies in images.values() if len(copies) > 1]
    assert len(repeats) > 5
    for copies in repeats:
        assert not any(torch.equal(a, b) for i, a in enumerate(copies) for b in copies[i + 1 :]), (
            "two draws of one record have the same pixels"
        )


@pytest.mark.slow
def test_a_component_that_needs_global_states_is_reproducible(photos):
    config = compose([*overrides(photos), *NOISE])
    hashes = digests(config, **INLINE)
    assert len({digest for epoch in hashes for digest in epoch}) == 14
    torch.manual_seed(99)
    for engine in ENGINES:
        assert digests(config, **way(engine)) == hashes


@pytest.mark.parametrize("engine", ENGINES)
def test_these_tests_notice_an_undeclared_draw(engine, photos):
    noise = "augment.train.noise={_target_: transform/laws_undeclared_noise}"
    config = compose([*overrides(photos), noise])
    assert digests(config, **INLINE) != digests(config, **way(engine))
