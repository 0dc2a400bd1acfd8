"""Actors of a Ray cluster give the batches of the inline engine."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from penstock import compose
from tests.cluster import another_machine, local_cluster
from tests.console import penstock
from tests.digests import batch_digest
from tests.laws.runs import (
    AUGMENTS,
    INLINE,
    LOADER,
    NOISE,
    digests,
    loader_of,
    overrides,
    rest,
    way,
)

pytestmark = pytest.mark.slow
MOSAIC = "augment.train.mosaic={_target_: transform/mosaic, height: 20, width: 20, p: 0.7}"


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_cluster() as started:
        yield started


@pytest.mark.parametrize(
    ("dataset", "sampler", "augment"),
    [
        ("image_folder", "weighted", "strong"),
        ("webdataset", "shard_shuffle", "imagenet"),
        ("memmap", "random", "none"),
        ("mix", "mix", "light"),
    ],
)
def test_actors_give_the_batches_of_the_inline_engine(dataset, sampler, augment, photos, packed):
    content = {"dataset": dataset, "sampler": sampler, "augment": augment}
    config = compose(overrides(photos, packed, **content))
    assert digests(config, **way("ray", 3)) == digests(config, **INLINE)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """Return a folder that only this machine has."""
    return tmp_path_factory.mktemp("of here")


@pytest.fixture(scope="module")
def far(cluster, hidden):
    """Return the resources of a machine that does not see the cache of this one."""
    with pytest.MonkeyPatch.context() as patch, another_machine(cluster, hidden) as takes:
        patch.setenv("XDG_CACHE_HOME", str(hidden / "cache"))
        yield takes


@pytest.mark.parametrize(
    ("dataset", "sampler", "more"),
    [
        ("image_folder", "weighted", [MOSAIC]),
        ("webdataset", "without", ["dataset/cache=disk"]),
        ("mix", "mix", []),
    ],
)
def test_actors_on_a_machine_with_a_cache_of_its_own(dataset, sampler, more, photos, packed, far):
    config = compose([*overrides(photos, packed, dataset=dataset, sampler=sampler), *more])
    there = way("ray", 2, resources=far)
    assert digests(config, **there) == digests(config, **INLINE)


def test_only_the_machine_that_trains_reads_a_table(hidden, far):
    rows = "".join(f"{n},{n % 7},{'ab'[n % 2]}\n" for n in range(40))
    (hidden / "rows.csv").write_text(f"height,width,label\n{rows}")
    config = compose(["task=table", f"dataset.storage.path={hidden}/rows.csv", *LOADER])
    there = way("ray", 2, resources=far)
    assert digests(config, **there) == digests(config, **INLINE)


def test_each_machine_copies_files_from_urls(photos, packed, store, cluster):
    url = store.put(packed / "lmdb", "lmdb")
    config = compose([*overrides(photos, packed, dataset="lmdb"), f"dataset.storage.path={url}"])
    cache = Path(os.environ["XDG_CACHE_HOME"])
    cache.mkdir(exist_ok=True)
    with another_machine(cluster, cache, name="same_cache") as takes:
        there = way("ray", 2, resources=takes)
        assert digests(config, **there) == digests(config, **INLINE)


def test_an_error_names_the_machine_that_cannot_read_the_data(photos, packed, store, hidden, far):
    shutil.copytree(photos, hidden / "photos")
    with closing(sqlite3.connect(hidden / "rows.db")) as rows:
        rows.execute("create table photos(name integer primary key, image blob, label integer)")
        rows.executemany("insert into photos values(?, ?, ?)", [(n, b"", n % 4) for n in range(40)])
        rows.commit()
    url = store.put(packed / "lmdb", "lmdb")
    for said, changes in {
        f"no {hidden}/photos/train, from which image_folder reads; every machine of the cluster":
            [f"dataset.storage.path={hidden}/photos"],
        f"no {hidden}/rows.db, from which sql reads":
            ["dataset=sql", f"dataset.storage.url=sqlite:///{hidden}/rows.db"],
        "dataset=eager are for one machine, others keep records by":
            [f"dataset.storage.path={photos}", "dataset/cache=ram"],
        "start Ray with the same XDG_CACHE_HOME": ["dataset=lmdb", f"dataset.storage.path={url}"],
    }.items():  # fmt: skip
        config = compose([*AUGMENTS["light"], *LOADER, *changes])
        with pytest.raises(RuntimeError, match=f"loader: .* cannot be opened on far: .*{said}"):
            digests(config, **way("ray", 2, resources=far))


def test_actors_read_from_urls_with_the_credentials_of_this_machine(photos, store):
    config = compose([*overrides(store.put(photos, "photos")), "dataset/cache=none"])
    assert digests(config, **way("ray", 2)) == digests(config, **INLINE)


def test_a_component_that_needs_global_states_has_its_own_actor(photos):
    config = compose([*overrides(photos), *NOISE])
    assert digests(config, **way("ray", 2)) == digests(config, **INLINE)


def test_training_and_evaluation_have_their_own_actors_and_a_state_resumes(photos):
    config = compose(overrides(photos, sampler="weighted", augment="strong"))
    _, second = digests(config, **INLINE)
    actors = way("ray", 2)
    with loader_of(config, **actors) as loader, loader_of(config, "val", **actors) as evaluated:
        loader.set_epoch(1)
        first = rest(loader, 3)
        assert [batch_digest(batch) for batch in evaluated] == digests(
            config, epochs=1, split="val", **INLINE
        )[0]
        state = loader.state_dict()
    with loader_of(config, **actors) as loader:
        loader.load_state_dict(state)
        assert first + rest(loader) == second


def test_doctor_compares_the_batches_of_actors(photos, capsys):
    given = ["loader=ray", "loader.num_workers=2", "loader.resources={CPU: 1}"]
    assert penstock("doctor", "equal=true", "doctor.batches=2", *overrides(photos), *given) == 0
    said = capsys.readouterr().out
    assert "ray, as configured" in said and "all are equal" in said
