"""Doctor tells what an epoch of data behind a URL asks for, as it turns out to be."""

from __future__ import annotations

import re

import cv2
import numpy as np
import pytest

from penstock import build_loader
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.storages.webdataset import WebDatasetWriter
from penstock.datasets.writing import write_storage
from penstock.pipeline.commands import doctor
from penstock.pipeline.config.compose import configure
from tests.object_store import BUCKET, object_store


@pytest.fixture
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Records that are too large to be asked for with the next one, so that each is a request.
    rng = np.random.default_rng(0)
    for number in range(80):
        file = tmp_path / "photos" / "train" / ("ash" if number < 30 else "birch") / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(file), rng.integers(0, 256, (120, 120, 3), np.uint8))
    source = ImageFolder(str(tmp_path / "photos" / "train"))
    write_storage(WebDatasetWriter(shard_records=16), tmp_path / "w", source)
    with object_store(monkeypatch.setenv) as store:
        store.put(tmp_path / "w", "w")
        yield store


def told(capsys, *typed):
    given = ["dataset=webdataset", f"dataset.storage.path=s3://{BUCKET}/w", "loader.batch_size=8"]
    config = configure([*given, "loader=inline", "augment=light", *typed], command="doctor")
    assert doctor.run(config) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "s3://" in line]
    return config, *lines


def test_it_tells_what_the_epoch_takes_and_what_later_ones_do(store, capsys):
    config, _ = told(capsys, "dataset/cache=none")
    with build_loader(config, "train") as loader:
        list(loader)
        taken = loader.stats.times
    for typed, later in (
        ([], "later ones none: the cache has room for all of it"),
        (["dataset/cache=none"], "and each later one too: nothing is kept"),
        (["dataset/cache=ram", "dataset.cache.max_bytes=40KB"], r"later ones about \d+ requests"),
    ):
        _, line = told(capsys, *typed)
        requests, megabytes = re.search(r"about ([\d,]+) requests for ([\d.]+) MB", line).groups()
        assert int(requests) == pytest.approx(taken.requests, rel=0.15)
        assert float(megabytes) == pytest.approx(taken.fetched_bytes / 1e6, rel=0.3, abs=0.1)
        assert re.search(later, line)
