"""The same batches from actors of a cluster, for real configurations."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from penstock import compose
from penstock.core.machine_cache import received
from penstock.core.ray_cluster import SentFiles
from penstock.pipeline.commands import main
from penstock.pipeline.loader.digest import batch_digest
from penstock.pipeline.loader.worker_errors import WorkerError
from tests.cluster import another_machine, local_cluster
from tests.laws.runs import AUGMENTS, INLINE, LOADER, digests, loader_of, overrides, rest, way

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
    assert digests(config, **way("ray", 3, processes=2)) == digests(config, **INLINE)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """A folder that only this machine has."""
    return tmp_path_factory.mktemp("of here")


@pytest.fixture(scope="module")
def far(cluster, hidden):
    """What an actor takes on a machine that does not see the cache of this one."""
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
    there = way("ray", 2, processes=1, resources=far)
    assert digests(config, **there) == digests(config, **INLINE)


def test_a_table_is_read_by_the_machine_that_trains_alone(hidden, far):
    rows = "".join(f"{n},{n % 7},{'ab'[n % 2]}\n" for n in range(40))
    (hidden / "rows.csv").write_text(f"height,width,label\n{rows}")
    config = compose(["task=table", f"dataset.storage.path={hidden}/rows.csv", *LOADER])
    there = way("ray", 2, processes=1, resources=far)
    assert digests(config, **there) == digests(config, **INLINE)


def test_a_file_that_a_machine_lacks_is_fetched_whole_and_the_store_holds_none_of_it(hidden, far):
    import ray

    file = str(hidden / "rows.npy")
    np.save(file, expected := np.random.default_rng(0).integers(0, 256, 40 << 20, np.uint8))
    sent = SentFiles.of([file], "a test")

    @ray.remote(resources=far)
    def there():
        with sent.received():
            assert received(file) != file
            return int(np.load(received(file)).sum())

    assert len(pickle.dumps(sent)) < 1000, "and nothing is put"
    assert ray.get(there.remote()) == int(expected.sum())


def test_what_is_copied_from_urls_is_copied_by_each_machine(photos, packed, store, cluster):
    url = store.put(packed / "lmdb", "lmdb")
    config = compose([*overrides(photos, packed, dataset="lmdb"), f"dataset.storage.path={url}"])
    cache = Path(os.environ["XDG_CACHE_HOME"])
    cache.mkdir(exist_ok=True)
    with another_machine(cluster, cache, name="same_cache") as takes:
        there = way("ray", 2, processes=1, resources=takes)
        assert digests(config, **there) == digests(config, **INLINE)


def test_a_machine_that_has_no_way_to_the_data_is_named(photos, packed, store, hidden, far):
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
        with pytest.raises(WorkerError, match=f"loader: .* cannot be opened on far: .*{said}"):
            digests(config, **way("ray", 2, processes=1, resources=far))


def test_actors_read_from_urls_with_the_credentials_of_here(photos, store):
    config = compose([*overrides(store.put(photos, "photos")), "dataset/cache=none"])
    assert digests(config, **way("ray", 2, processes=1)) == digests(config, **INLINE)


def test_a_component_that_needs_global_states_has_an_actor_for_itself(photos):
    noise = "augment.train.noise={_target_: transform/laws_global_noise}"
    config = compose([*overrides(photos), noise])
    assert digests(config, **way("ray", 2, processes=1)) == digests(config, **INLINE)


def test_training_and_evaluation_each_have_their_actors_and_a_state_leads_to_the_rest(photos):
    config = compose(overrides(photos, sampler="weighted", augment="strong"))
    _, second = digests(config, **INLINE)
    actors = way("ray", 2, read_ahead=2)
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


def test_doctor_compares_what_actors_give(photos, capsys):
    given = ["loader=ray", "loader.num_workers=2", "loader.resources={CPU: 1}"]
    assert main(["doctor", "equal=true", "doctor.batches=2", *overrides(photos), *given]) == 0
    said = capsys.readouterr().out
    assert "ray, as configured" in said and "all are equal" in said
