"""A state resumes at its batch, in any process and with any engine, or is refused."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from penstock import compose
from tests.digests import batch_digest, row_digests
from tests.laws.runs import ENGINES, INLINE, SAMPLERS, digests, loader_of, overrides, rest, way
from tests.laws.runs import rows as whole_rows
from tests.shares import in_turn

WAYS: list[dict[str, Any]] = [
    way("threads", 3),
    INLINE,
    way("torch", 1),
    way("default", 2),
    way("processes", 2),
    way("threads", 0),
]


def resumed(config: dict[str, Any], state: str, run: dict[str, Any]) -> tuple[list[str], str]:
    """Return the rest of an epoch from a state, and the state at its end."""
    with loader_of(config, **run) as loader:
        loader.load_state_dict(json.loads(state))
        return rest(loader), json.dumps(loader.state_dict())


@pytest.fixture(scope="module")
def elsewhere():
    """Return a function that calls `resumed` in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        yield lambda *arguments: pool.submit(resumed, *arguments).result(timeout=120)


@pytest.mark.parametrize(("sampler", "tail"), in_turn([*SAMPLERS], ["pad", False]))
def test_after_every_step_in_another_process(sampler, tail, photos, elsewhere):
    config = compose(overrides(photos, sampler=sampler, augment="strong"))
    config["loader"]["drop_last"] = tail
    _, second, third = digests(config, epochs=3, **INLINE)
    engine = ENGINES[len(sampler) % len(ENGINES)]
    with loader_of(config, **way(engine)) as loader:
        loader.set_epoch(1)
        batches = iter(loader)
        for step in range(len(second) + 1):
            state = json.dumps(loader.state_dict())
            assert json.loads(state)["next_batch"] == step
            assert len(state) < 3_000, "a state is a position and no data"
            other = WAYS[(step + len(sampler)) % len(WAYS)]
            given, end = elsewhere(config, state, other)
            assert given == second[step:], f"after {step} batches"
            assert elsewhere(config, end, other)[0] == third, "then comes the next epoch"
            next(batches, None)


def test_a_run_resumed_after_every_batch(photos):
    config = compose(overrides(photos, sampler="weighted"))
    expected, following = digests(config, **INLINE)
    seen: list[str] = []
    state: dict[str, Any] | None = None
    for turn in range(len(expected)):
        with loader_of(config, **WAYS[turn % 2]) as loader:
            if state is not None:
                loader.load_state_dict(state)
                loader.load_state_dict(loader.state_dict())
            seen += rest(loader, 1)
            state = loader.state_dict()
    assert seen == expected
    with loader_of(config, **INLINE) as loader:
        loader.load_state_dict(state)
        assert [rest(loader), rest(loader)] == [[], following]


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_elastic(world_size, photos):
    config = compose(overrides(photos, sampler="weighted"))
    alone = whole_rows(config, **INLINE)
    for step in (0, 1, 5, len(alone)):
        with loader_of(config, rank=1, world_size=2, **INLINE) as loader:
            rest(loader, step)
            state = loader.state_dict()
        joined: list[list[str]] = [[] for _ in alone[step:]]
        for rank in range(world_size):
            with loader_of(config, rank=rank, world_size=world_size, **INLINE) as loader:
                loader.load_state_dict(state)
                for rows, batch in zip(joined, loader, strict=True):
                    rows += row_digests(batch)
        assert joined == alone[step:]


CHANGES = {
    "seed": (["seed=1"], "seed was 0 and is 1"),
    "sampler": (["sampler=random"], "plan.sampler._target_ was sampler/weighted and is sampler/"),
    "draws": (["sampler.num_samples=52"], "plan.num_positions was 53 and is 52"),
    "weights": (["sampler.weights={ash: 5}"], "plan.sampler.weights was balanced and is"),
    "G": (["loader.batch_size=5"], "plan.batch_size was 6 and is 5"),
    "tail": (["loader.drop_last=pad"], "plan.tail was keep and is pad"),
    "decode": (["dataset.decode.mode=L"], "pixels.decode.decode.mode was RGB and is L"),
    "keys": (["dataset.keys={image: photo}"], "pixels.decode.keys was None and is"),
    "augment": (["augment.train.flip.p=0.4"], "pixels.augment.flip.p was 0.5 and is 0.4"),
    "a step more": (
        ["augment.train.blur={_target_: albumentations.Blur}"],
        "pixels.augment.blur was nothing and is {",
    ),
    "collate": (["collate=list"], "pixels.collate._target_ was collate/stack and is collate/list"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_state_names_the_change_that_it_refuses(change, photos):
    overriding, message = CHANGES[change]
    base = overrides(photos, sampler="weighted")
    with loader_of(compose(base), **INLINE) as loader:
        rest(loader, 2)
        state = loader.state_dict()
    if change == "sampler":
        base = [o for o in base if not o.startswith("sampler")]
    with loader_of(compose([*base, *overriding]), **INLINE) as loader:
        with pytest.raises(ValueError, match="rest of the epoch would not be the same") as caught:
            loader.load_state_dict(state)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        loader.load_state_dict(state, anyway=True)


def _alter(photos, how: str) -> None:
    folder = photos / "train" / "cedar"
    if how == "an image more":
        shutil.copy(folder / "00.jpg", folder / "99.jpg")
    elif how == "an image renamed":
        (folder / "00.jpg").rename(folder / "99.jpg")
    elif how == "another class":
        (folder / "00.jpg").rename(folder.with_name("dogwood") / "99.jpg")
    else:
        with open(folder / "00.jpg", "ab") as file:
            file.write(b"\0")


@pytest.mark.parametrize(
    "how", ["an image more", "an image renamed", "another class", "another size"]
)
def test_a_state_refuses_other_data_and_accepts_a_copy(how, photos, tmp_path):
    expected = digests(compose(overrides(photos)), epochs=1, **INLINE)[0]
    with loader_of(compose(overrides(photos)), **INLINE) as loader:
        rest(loader, 2)
        state = loader.state_dict()
    copy = tmp_path / "elsewhere"
    shutil.copytree(photos, copy)
    with loader_of(compose(overrides(copy)), **INLINE) as loader:
        loader.load_state_dict(state)
        assert rest(loader) == expected[2:]
    _alter(copy, how)
    with loader_of(compose(overrides(copy)), **INLINE) as loader:
        with pytest.raises(ValueError, match="data was "):
            loader.load_state_dict(state)


def test_a_file_of_weights_may_move_but_not_change(photos, tmp_path):
    import numpy as np

    base = [o for o in overrides(photos) if not o.startswith("sampler")]
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        weights = np.linspace(0.5, 3.0, 41)
        weights[7] = value
        np.save(tmp_path / f"{name}.npy", weights)

    def loader(name: str) -> Any:
        weighted = ["sampler=weighted", f"sampler.weights={tmp_path}/{name}.npy"]
        return loader_of(compose([*base, *weighted]), **INLINE)

    state = loader("a").state_dict()
    loader("b").load_state_dict(state)
    with pytest.raises(ValueError, match=r"plan\.weights was"):
        loader("c").load_state_dict(state)


def test_a_quarantined_position_stays_quarantined(photos):
    config = compose(overrides(photos))
    with loader_of(config, **INLINE) as loader:
        state = {**loader.state_dict(), "quarantined": [2, 9]}
        loader.load_state_dict(state)
        first = next(iter(loader))
        again = loader.state_dict()
    assert again["quarantined"] == [2, 9]
    assert loader.stats.bad_samples >= 1
    for run in WAYS:
        with loader_of(config, **run) as loader:
            loader.load_state_dict(state)
            assert batch_digest(next(iter(loader))) == batch_digest(first)
