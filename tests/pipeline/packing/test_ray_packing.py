"""Packing on a cluster of Ray: the bytes of one machine, whatever dies."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.pipeline.commands import pack as command
from penstock.pipeline.config.components import register_components
from penstock.pipeline.config.compose import configure
from penstock.pipeline.packing.run import pack
from tests.cluster import local_cluster, where_penstock_is_missing
from tests.contracts.records import records_of
from tests.contracts.storage import contents
from tests.laws.conftest import make_photos
from tests.pipeline.packing.packings import KINDS, Deadly, packing
from tests.programs import PENSTOCK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
ON_RAY = {"num_workers": 3, "launcher": "ray"}


@pytest.fixture(scope="module", autouse=True)
def cluster():
    register_components()
    with local_cluster() as started:
        yield started


@pytest.fixture
def whole(tmp_path):
    (tmp_path / "one").mkdir()
    assert pack(packing(tmp_path / "one/packed")) == 0
    return contents(tmp_path / "one")


def test_the_bytes_are_those_of_one_machine_and_are_verified(tmp_path, whole):
    (tmp_path / "ray").mkdir()
    assert pack(packing(tmp_path / "ray/packed", verify_all=True, **ON_RAY)) == 0
    assert contents(tmp_path / "ray") == whole


def test_more_workers_than_cores_get_done(tmp_path, whole):
    (tmp_path / "ray").mkdir()
    assert pack(packing(tmp_path / "ray/packed", **{**ON_RAY, "num_workers": 40})) == 0
    assert contents(tmp_path / "ray") == whole


def test_a_process_that_dies_has_its_part_written_again(tmp_path, whole):
    for name in ("counts", "ray"):
        (tmp_path / name).mkdir()
    records = Deadly(*_given(records_of(KINDS)), times=2, counts=tmp_path / "counts")
    sources = {"train": records, "val": records_of(KINDS, 7)}
    assert pack(packing(tmp_path / "ray/packed", sources, **ON_RAY)) == 0
    assert contents(tmp_path / "ray") == whole
    assert len(list((tmp_path / "counts").iterdir())) == 2


def test_a_part_that_dies_each_time_ends_it_and_the_same_command_goes_on(tmp_path, whole):
    for name in ("counts", "ray"):
        (tmp_path / name).mkdir()
    records = Deadly(*_given(records_of(KINDS)), times=3, counts=tmp_path / "counts")
    sources = {"train": records, "val": records_of(KINDS, 7)}
    with pytest.raises(ValueError, match=r"ended its worker process 3 times"):
        pack(packing(tmp_path / "ray/packed", sources, **ON_RAY))
    assert pack(packing(tmp_path / "ray/packed", sources, **ON_RAY)) == 0
    assert contents(tmp_path / "ray") == whole


def test_from_an_object_store_with_the_credentials_of_here(tmp_path, store):
    make_photos(tmp_path / "photos", {"ash": 12, "birch": 9})
    given = [f"dataset.storage.path={store.put(tmp_path / 'photos', 'photos')}"]
    given += ["pack.to=webdataset", "writer.shard_records=4"]
    for name, typed in {"here": ["pack.num_workers=0"], "ray": ["pack.launcher=ray"]}.items():
        target = [f"pack.path={tmp_path / name}", *typed]
        assert command.run(configure([*given, *target], command="pack")) == 0
    assert contents(tmp_path / "ray") == contents(tmp_path / "here")
    assert len(contents(tmp_path / "here")) > 6


def test_a_machine_without_penstock_is_told(tmp_path):
    (tmp_path / "hidden").mkdir()
    told = where_penstock_is_missing(
        tmp_path / "hidden",
        "from pathlib import Path\n"
        "from penstock.pipeline.config.components import register_components\n"
        "from penstock.pipeline.packing.run import pack\n"
        "from tests.pipeline.packing.packings import packing\n"
        "register_components()\n"
        f"pack(packing(Path({str(tmp_path / 'packed')!r}), num_workers=2, launcher='ray'))\n",
    )
    assert "pack: " in told and "No module named 'penstock'; every mach" in told


def test_as_it_is_typed(tmp_path, cluster):
    photos = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        for number in range(20):
            image = rng.integers(0, 256, (24, 24, 3), np.uint8)
            cv2.imwrite(str(photos / name / f"{number:02d}.jpg"), image)

    def packed(target, *more):
        command = [PENSTOCK, "pack", f"dataset.storage.path={photos}",
                   f"pack.path={target}", "pack.quality=80", *more]  # fmt: skip
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stderr
        result = contents(target)
        shutil.rmtree(target)
        return result

    target, shards = tmp_path / "packed", ("pack.to=webdataset", "writer.shard_records=8")
    here = packed(target, *shards)
    assert packed(target, *shards, "pack.launcher=ray", "pack.verify=true") == here


def _given(records):
    return records.records, records.index.class_names
