"""Actors of Ray: the batches of the inline engine, whatever becomes of actors and machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
import ray
import torch

from penstock.pipeline.loader.faults import BadSampleError
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
    assert all(torch.all(batch["image"] == 7) for batch in kept), "also when the actors are gone"


@pytest.mark.parametrize(("how", "timeout_s"), [("kill", 90), ("hang", 8)])
def test_a_record_that_ends_its_actor_is_quarantined(how, timeout_s, tmp_path, caplog):
    witness = tmp_path / "witness"
    with make_loader(
        DeadlyDataset(how, witness), sampler(), **ACTORS, timeout_s=timeout_s
    ) as loader:
        assert digests(loader) == expected()
        assert loader.state_dict()["quarantined"] == [RECORD]
        assert loader.stats.bad_samples == 1, "its neighbours are good"
    assert "quarantined: it killed the worker" in caplog.text
    assert len(set(witness.read_text().splitlines())) == 4, "two with its batch, two alone"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_actor_that_is_ended_from_outside_is_replaced(number):
    settings = {**ACTORS, "timeout_s": 4}
    with make_loader(FakeDataset(N, slow_s=0.02), sampler(), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at in (1, 4):
                _wait(lambda: None not in the_pool(loader).pids)
                os.kill(the_pool(loader).pids[at % 2], number)
        assert got == expected(quarantined=False)
        assert loader.state_dict()["quarantined"] == [], "nothing was wrong with a batch"


def test_a_machine_that_goes_takes_no_batch_with_it_and_one_that_comes_takes_part(cluster):
    far = cluster.add_node(num_cpus=2, resources={"far": 2}, **SMALL)
    dataset = FakeDataset(400, slow_s=0.05)
    whole = digests(make_loader(FakeDataset(400)), epochs=1)
    settings = {**ACTORS, "resources": {"far": 1, "CPU": 0}}
    with make_loader(dataset, **settings) as loader:
        batches = iter(loader)
        got = [digest(next(batches)) for _ in range(3)]
        _wait(lambda: None not in the_pool(loader).pids)
        first = set(the_pool(loader).pids)
        cluster.remove_node(far, allow_graceful=False)
        cluster.add_node(num_cpus=2, resources={"far": 2}, **SMALL)
        got += [digest(batch) for batch in batches]
        assert got == whole
        assert not first & set(the_pool(loader).pids)
        assert loader.state_dict()["quarantined"] == []


def test_actors_for_which_there_is_no_room_yet_do_not_hold_up_the_others(cluster, monkeypatch):
    monkeypatch.setattr("penstock.core.processes.START_S", 25.0)
    cluster.add_node(num_cpus=1, resources={"narrow": 1}, **SMALL)
    whole = digests(make_loader(FakeDataset(160)))
    settings = {**ACTORS, "resources": {"narrow": 1}, "timeout_s": 25}
    with make_loader(FakeDataset(160, slow_s=0.1), **settings) as loader:
        got = []
        for at, batch in enumerate(loader):
            got.append(digest(batch))
            if at == 4:
                time.sleep(26)  # longer than a start may take
                cluster.add_node(num_cpus=1, resources={"narrow": 1}, **SMALL)
        assert got == whole
        _wait(lambda: None not in the_pool(loader).pids)  # as soon as there is room


def test_a_cluster_without_room_is_told(monkeypatch):
    monkeypatch.setattr("penstock.core.processes.START_S", 2.0)
    settings = {**ACTORS, "resources": {"nowhere": 1}, "timeout_s": 2}
    with (
        make_loader(FakeDataset(N), **settings) as loader,
        pytest.raises(WorkerError, match=r"not started within 2 s; the cluster has CPU \d"),
    ):
        digests(loader)


def test_a_batch_that_ends_every_actor_ends_the_run():
    with (
        make_loader(FakeDataset(N), sampler(), collate=DeadlyCollate(), **ACTORS) as loader,
        pytest.raises(WorkerError, match="no record of the batch does it alone"),
    ):
        digests(loader)


def test_a_quarantined_sample_may_not_be_passed_over_where_none_may():
    with (
        make_loader(DeadlyDataset("kill"), sampler(), **ACTORS, on_error="raise") as loader,
        pytest.raises(BadSampleError, match=rf"'img/{RECORD:07d}.jpg' at position"),
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


class _Locked(FakeDataset):
    def __getstate__(self):
        raise TypeError("cannot pickle '_thread.lock' object")


def test_what_cannot_be_sent_to_actors_is_told():
    with (
        make_loader(_Locked(N), **ACTORS) as loader,
        pytest.raises(ValueError, match=r"cannot be sent to processes.*loader.engine=threads"),
    ):
        digests(loader)


def test_an_error_carries_its_traceback_and_worker():
    with make_loader(FakeDataset(N, crash=RECORD), **ACTORS) as loader:
        with pytest.raises(KeyError) as caught:
            digests(loader)
        cause = str(caught.value.__cause__)
        assert "in worker process" in cause and "in _one" in cause
        loader.dataset.crash = None
        assert len(digests(loader)) == 8, "it starts again after an error"


def test_no_more_than_what_is_ahead_lies_in_the_object_store():
    dataset = FakeDataset(400, size=512)  # 3 MB a batch of four, 300 MB in all
    with make_loader(dataset, batch_size=4, **ACTORS, prefetch_factor=2) as loader:
        most, batches = 0.0, 0
        for _ in loader:
            batches += 1
            most = max(most, _stored_mb())
        assert batches == 100
        assert most < 3.2 * (2 * 2 + 3 + 2), "ahead, held by the consumer, on their way"


def _stored_mb():

    usage = ray.available_resources().get("object_store_memory", 0)
    return (ray.cluster_resources()["object_store_memory"] - usage) / 1e6


def test_actors_end_with_their_loader():
    with make_loader(FakeDataset(N), **ACTORS) as loader:
        digests(loader)
        pids = [pid for pid in the_pool(loader).pids if pid is not None]  # of those that began
        assert pids and all(map(psutil.pid_exists, pids))
    _wait(lambda: not any(map(psutil.pid_exists, pids)))


def _wait(until):
    deadline = time.monotonic() + 150
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_extra_is_named_where_ray_is_missing():
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "make_loader(FakeDataset(8), engine='ray', num_workers=1)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=99)
    assert "run: pip install 'penstock[ray]'" in ended.stderr.splitlines()[-1]


def test_a_machine_without_penstock_is_told_at_the_first_actor(tmp_path):
    told = where_penstock_is_missing(
        tmp_path,
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "next(iter(make_loader(FakeDataset(8), engine='ray', num_workers=1)))\n",
    )
    assert "actor 0 could not start" in told and "No module named 'penstock'; every mach" in told
    assert "it is replaced" not in told


@pytest.mark.parametrize("address", ["127.0.0.1:9", "auto"])
def test_a_cluster_that_does_not_answer_is_told_at_once(address, tmp_path):
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:9")  # by one that is gone
    code = (
        "from tests.pipeline.loader.fakes import FakeDataset, make_loader\n"
        "make_loader(FakeDataset(8), engine='ray', num_workers=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200,
        env={**os.environ, "RAY_ADDRESS": address, "RAY_TMPDIR": str(tmp_path)},
    )  # fmt: skip
    last = ended.stderr.splitlines()[-1]
    assert f"RAY_ADDRESS={address}: no cluster answers there" in last and "unset" in last
