from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from datasets.available_memory import available_bytes
from datasets.eager_dataset import EagerDataset, check_fits
from datasets.map_dataset import MapDataset
from datasets.protocols import Dataset
from datasets.sample import BadSample
from datasets.shared_bytes import SharedBytes
from datasets.stages import DecodeStage
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.datasets.test_map_dataset import STEPS, fetch, identity, storage
from tests.memory_storage import MemoryStorage
from transforms.cpu.stack import build_stack
from transforms.decode.image import ImageDecoder
from transforms.decode.raw import RawDecoder

ORDER = ([7, 1, 2, 0, 5, 7, 3], [3, 4, 5, 6, 7, 8, 9])


def eager(**options) -> EagerDataset:
    return EagerDataset(
        storage(), decode=ImageDecoder(),
        transform=build_stack(STEPS, build_step=build_step), seed=5, **options,
    )  # fmt: skip


def lazy() -> MapDataset:
    return MapDataset(
        storage(), decode=ImageDecoder(),
        transform=build_stack(STEPS, build_step=build_step), seed=5,
    )  # fmt: skip


def test_samples_are_those_of_the_map_dataset_bit_for_bit():
    data = eager()
    assert isinstance(data, Dataset) and len(data) == 8
    for epoch in range(2):
        expected = fetch(lazy(), *ORDER, epoch)
        assert isinstance(expected[2], BadSample) and isinstance(expected[4], BadSample)
        assert_same(fetch(data, *ORDER, epoch), expected)
    assert data.fingerprint() == lazy().fingerprint()


def test_more_records_than_one_piece_of_work_keep_their_order():
    fields = [{"features": np.full(i % 7, i, np.float32), "name": f"n{i}"} for i in range(500)]
    data = EagerDataset(MemoryStorage(fields), decode=RawDecoder(), transform=identity, seed=0)
    rows = np.random.default_rng(0).permutation(500)
    for row, sample in zip(rows.tolist(), fetch(data, rows, rows), strict=True):
        assert sample["name"] == f"n{row}" and sample["index"] == row
        assert sample["features"].tolist() == [row] * (row % 7)


def test_nothing_is_decoded_after_it_is_made():
    data = eager()
    reads = len(data.storage.reads)
    fetch(data, *ORDER)
    assert len(data.storage.reads) == reads


def test_what_a_transform_writes_does_not_stay():
    def spoil(sample, rng):
        sample["image"][:] = 0
        sample["label"] = -1
        return sample

    data = EagerDataset(storage(), decode=ImageDecoder(), transform=spoil, seed=0)
    fetch(data, [0], [0])
    plain = EagerDataset(storage(), decode=ImageDecoder(), transform=identity, seed=0)
    data._transform.transform = identity
    assert_same(fetch(data, [0], [0]), fetch(plain, [0], [0]))


def _work(data: EagerDataset, queue) -> None:
    before = data._memory._descriptor
    queue.put((before, fetch(data, *ORDER)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_see_the_same_memory(method):
    data = eager()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    worker = context.Process(target=_work, args=(data, queue))
    worker.start()
    _, samples = queue.get(timeout=60)
    worker.join()
    assert_same(samples, fetch(data, *ORDER))


def test_a_pickle_holds_where_it_is_and_not_what_it_holds():
    fields = [{"features": np.full(100_000, i, np.int64)} for i in range(4)]
    data = EagerDataset(MemoryStorage([]), decode=RawDecoder(), transform=identity, seed=0)
    assert len(data) == 0 and fetch(data, [], []) == []
    data = EagerDataset(MemoryStorage(fields), decode=RawDecoder(), transform=identity, seed=0)
    data.storage = MemoryStorage([{}] * 4)
    pickled = pickle.dumps(data)
    assert data.size_bytes > 3_200_000 and len(pickled) < 3_000
    again = pickle.loads(pickled)
    assert fetch(again, [3], [0])[0]["features"].tolist() == [3] * 100_000


def test_shared_bytes_are_gone_with_their_last_user():
    memory = SharedBytes()
    memory.append(b"twelve bytes")
    link = f"/proc/{os.getpid()}/fd/{memory._descriptor}"
    other = pickle.loads(pickle.dumps(memory))
    assert bytes(other.view()) == b"twelve bytes"
    assert not other.view().flags.writeable
    pickled = pickle.dumps(memory)
    del memory
    gc.collect()
    assert not os.path.exists(link)
    assert bytes(other.view()) == b"twelve bytes"
    with pytest.raises(RuntimeError, match="the process that made it"):
        pickle.loads(pickled)


KILLED = """
import os, time, sys
from datasets.shared_bytes import SharedBytes
memory = SharedBytes()
memory.append(bytes(1 << 20))
memory.view()
print("ready", flush=True)
time.sleep(60)
"""


def test_nothing_is_left_behind_by_sigkill(tmp_path):
    before = set(os.listdir("/dev/shm"))
    with subprocess.Popen(
        [sys.executable, "-c", KILLED],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not list(tmp_path.iterdir())
    assert not [n for n in set(os.listdir("/dev/shm")) - before if "penstock" in n]


def test_too_large_is_refused_before_it_is_decoded():
    records = storage()
    stage = DecodeStage(ImageDecoder(), keys=None, storage="memory here")
    needed = eager().size_bytes
    check_fits(records, stage, available=lambda: 2 * needed)
    check_fits(records, stage, available=lambda: None)
    with pytest.raises(ValueError, match=r"8 records of memory here need about .* map"):
        check_fits(records, stage, available=lambda: needed // 2)


def test_available_memory_is_the_smallest_of_the_limits(tmp_path):
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_bytes(tmp_path) == 5000 * 1024
    (tmp_path / "proc/self/cgroup").write_text("0::/jobs/mine\n")
    group = tmp_path / "sys/fs/cgroup/jobs"
    (group / "mine").mkdir(parents=True)
    (group / "mine/memory.max").write_text("max\n")
    (group / "mine/memory.current").write_text("100\n")
    assert available_bytes(tmp_path) == 5000 * 1024
    (group / "memory.max").write_text("1000000\n")
    (group / "memory.current").write_text("400000\n")
    (group / "memory.stat").write_text("anon 7\ninactive_file 150000\n")
    assert available_bytes(tmp_path) == 750_000
    real = available_bytes()
    assert real is None or real > 1 << 20


def test_progress_is_said_only_when_it_takes_long(capsys, monkeypatch):
    monkeypatch.setattr("datasets.eager_dataset._PROBES", 1)

    def slow(record):
        time.sleep(0.04)
        return {**record.fields, "index": record.index, "key": record.key}

    quick = MemoryStorage([{"label": i} for i in range(40)])
    EagerDataset(quick, decode=RawDecoder(), transform=identity, seed=0)
    assert capsys.readouterr().err == ""
    many = MemoryStorage([{"label": i} for i in range(34)])
    EagerDataset(many, decode=slow, transform=identity, seed=0)
    said = capsys.readouterr().err
    assert "decoded memory here: 34 in" in said
