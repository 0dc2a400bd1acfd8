"""A shard of a stream that is replaced during a run stops the run."""

from __future__ import annotations

import io
import json
import os
import tarfile

import pytest

from penstock import build_loader, compose
from tests.object_store import BUCKET, object_store

COMMON = ["dataset=stream", "augment=as_is", "dataset/decode=raw", "loader.batch_size=2",
          "dataset.val_fraction=0", "dataset.shuffle=false", "dataset.lanes=1",
          "dataset.shuffle_window=0"]  # fmt: skip
SMALL = 6


def write_tar(path, first, count):
    with tarfile.open(path, "w") as archive:
        for number in range(first, first + count):
            content = json.dumps({"number": number}).encode()
            info = tarfile.TarInfo(f"{number:04d}.json")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def write_lines(path, first, count):
    lines = [json.dumps({"number": number}) for number in range(first, first + count)]
    path.write_text("\n".join(lines) + "\n")


KINDS = {"webdataset": (write_tar, "tar"), "jsonl": (write_lines, "jsonl")}


@pytest.fixture(params=KINDS)
def shards(request, tmp_path):
    """The typed config of two shards, and a function that writes one of them."""
    write, ending = KINDS[request.param]

    def rewrite(first, count, in_place=False):
        path = tmp_path / "data" / f"b.{ending}"
        new = path if in_place else tmp_path / "new"
        write(new, first, count)
        os.utime(new, (first, first))  # two writes may be within one tick of the clock
        os.replace(new, path)

    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / f"a.{ending}", 0, SMALL)
    rewrite(1000, SMALL)
    typed = [*COMMON, f"dataset/source={request.param}", f"dataset.source.path={tmp_path / 'data'}"]
    return typed, rewrite


@pytest.mark.parametrize("workers", [["loader=inline"], ["loader=threads", "loader.num_workers=1"]])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [SMALL, 2 * SMALL])
def test_a_shard_replaced_between_epochs_is_noticed(shards, workers, in_place, count):
    typed, rewrite = shards
    with build_loader(compose([*typed, *workers]), "train") as loader:
        assert sum(len(batch["key"]) for batch in loader) == 2 * SMALL
        rewrite(2000, count, in_place)
        with pytest.raises(RuntimeError, match=r"b\.(tar|jsonl).*changed"):
            list(loader)


def test_a_shard_replaced_before_its_turn_is_noticed(shards):
    typed, rewrite = shards
    with build_loader(compose([*typed, "loader=inline"]), "train") as loader:
        rewrite(2000, SMALL)
        with pytest.raises(RuntimeError, match=r"b\.(tar|jsonl)"):
            list(loader)


def test_a_changed_shard_is_read_by_the_next_run(shards):
    typed, rewrite = shards
    rewrite(2000, 2 * SMALL)
    with build_loader(compose([*typed, "loader=inline"]), "train") as loader:
        assert sum(len(batch["key"]) for batch in loader) == 3 * SMALL


def test_a_replaced_object_of_a_store_is_noticed(tmp_path, monkeypatch):
    write_lines(tmp_path / "lines", 0, SMALL)
    with object_store(monkeypatch.setenv) as store:
        store.files["data/a.jsonl"] = (tmp_path / "lines").read_bytes()
        typed = [*COMMON, "dataset/source=jsonl", f"dataset.source.path=s3://{BUCKET}/data"]
        with build_loader(compose([*typed, "loader=inline"]), "train") as loader:
            assert sum(len(batch["key"]) for batch in loader) == SMALL
            write_lines(tmp_path / "lines", 10, SMALL)
            store.files["data/a.jsonl"] = (tmp_path / "lines").read_bytes()
            with pytest.raises(RuntimeError, match=r"a\.jsonl.*changed"):
                list(loader)
