"""Actors of Ray: the batches of the inline engine, whatever becomes of actors and machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from penstock.pipeline.loader.worker_errors import WorkerError
from tests.cluster import SMALL, local_cluster, where_penstock_is_missing
from tests.contracts.engine import check_engine
from tests.pipeline.loader.executors.deadly import (
    RECORD,
    DeadlyCollate,
    DeadlyDataset,
    N,
    expected,
    sampler,
)
from tests.pipeline.loader.fakes import FakeDataset, digest, digests, make_loader, the_pool

pytestmark = pytest.mark.slow

ACTORS = {"engine": "ray", "num_workers": 2}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    with local_cluster() as started:
        yield started


@pytest.mark.parametrize("num_workers", [1, 2])
def test_actors_give_the_batches_of_the_inline_engine(num_workers):
    check_engine("ray", num_workers=num_workers)


def test_batches_may_be_written_to_and_kept():
    with make_loader(FakeDataset(40, size=256), batch_size=2, **ACTORS) as loader:
        kept = list(loader)
        before = [digest(batch) for batch in kept]
        assert before == digests(make_loader(FakeDataset(40, size=256), batch_size=2))
        for batch in kept:
            batch["image"].fill_(7)
    assert all(torch.all(batch["image"] == 7) for batch in kept), "also when the loader is closed"


def test_batches_of_abandoned_iterations_are_not_kept():
    with make_loader(FakeDataset(N), **ACTORS) as loader:
        next(iter(loader))
        assert digests(loader) == digests(make_loader(FakeDataset(N)))
        loader.set_epoch(0)
        batches = iter(loader)
        next(batches)
        batches.close()
        assert not the_pool(loader).asked


@pytest.mark.parametrize(("how", "timeout_s"), [("kill", 90), ("hang", 8)])
def test_a_record_that_ends_its_actor_is_quarantined(how, timeout_s, tmp_path):
    witness = tmp_path / "witness"
    settings = {**ACTORS, "timeout_s": timeout_s}
    with make_loader(DeadlyDataset(how, witness), sampler(), **settings) as loader:
        assert digests(loader) == expected()
        assert loader.state_dict()["quarantined"] == [RECORD]
        assert loader.stats.bad_samples == 1, "its neighbours are good"
    lines = set(witness.read_text().splitlines())
    # Ray may lose the answer of the task before it; then the record is computed once more.
    assert 4 <= len(lines) <= 6, "with its batch, and three times alone"


class EndedOnce(FakeDataset):
    """Another program ends the process that computes a record for the first time."""

    def __init__(self, n, witness, **settings):
        super().__init__(n, **settings)
        self.witness = witness

    def _one(self, index, position, epoch):
        if index == RECORD and not self.witness.exists():
            self.witness.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._one(index, position, epoch)


def test_the_batch_of_a_process_that_is_ended_from_outside_is_computed_again(tmp_path):
    with make_loader(EndedOnce(N, tmp_path / "ended"), sampler(), **ACTORS) as loader:
        assert digests(loader) == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == [], "nothing was wrong with a batch"


def test_a_machine_that_goes_takes_no_batch_with_it_and_one_that_comes_takes_part(cluster):
    far = cluster.add_node(num_cpus=2, resources={"far": 2}, **SMALL)
    whole = digests(make_loader(FakeDataset(400)), epochs=1)
    settings = {**ACTORS, "resources": {"far": 1, "CPU": 0}}
    with make_loader(FakeDataset(400, slow_s=0.05), **settings) as loader:
        batches = iter(loader)
        got = [digest(next(batches)) for _ in range(3)]
        cluster.remove_node(far, allow_graceful=False)
        cluster.add_node(num_cpus=2, resources={"far": 2}, **SMALL)
        assert [*got, *map(digest, batches)] == whole
        assert loader.state_dict()["quarantined"] == []


def test_a_cluster_without_room_is_told(monkeypatch):
    monkeypatch.setattr("penstock.core.processes.START_S", 2.0)
    settings = {**ACTORS, "resources": {"nowhere": 1}, "timeout_s": 2}
    with (
        make_loader(FakeDataset(N), **settings) as loader,
        pytest.raises(WorkerError, match=r"no batch from the cluster, which has .*CPU"),
    ):
        digests(loader)


def test_a_batch_that_ends_every_actor_ends_the_run():
    with (
        make_loader(FakeDataset(N), sampler(), collate=DeadlyCollate(), **ACTORS) as loader,
        pytest.raises(WorkerError, match="no record of the batch does it alone"),
    ):
        digests(loader)


class _Elsewhere(FakeDataset):
    def __setstate__(self, state):
        raise FileNotFoundError("/data/photos")


def test_data_that_is_not_there_is_told_with_the_machine():
    with (
        make_loader(_Elsewhere(N), **ACTORS) as loader,
        pytest.raises(WorkerError, match=r"cannot be opened on .*FileNotFoundError: /data/photos"),
    ):
        digests(loader)


def test_the_extra_is_named_where_ray_is_missing():
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "next(iter(make_loader(FakeDataset(8), engine='ray', num_workers=1)))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=99)
    assert "run: pip install 'penstock[ray]'" in ended.stderr.splitlines()[-1]


def test_a_machine_without_penstock_is_told(tmp_path):
    told = where_penstock_is_missing(
        tmp_path,
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "next(iter(make_loader(FakeDataset(8), engine='ray', num_workers=1)))\n",
    )
    assert "No module named 'penstock'; every mach" in told


def test_a_cluster_that_does_not_answer_is_told_at_once():
    code = (
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "next(iter(make_loader(FakeDataset(8), engine='ray', num_workers=1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200,
        env={**os.environ, "RAY_ADDRESS": "127.0.0.1:9"},
    )  # fmt: skip
    assert "RAY_ADDRESS=127.0.0.1:9: no cluster answers" in ended.stderr.splitlines()[-1]
