"""A loader raises trouble of the machine; it replaces no good record because of it."""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import os
import resource
import sqlite3
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import ImageFile

from penstock import compose
from tests.console import penstock
from tests.laws.runs import IMPORTS, INLINE, LOADER, digests, loader_of, overrides, way

SMALL = ["augment=none", "augment.image_size=8", *LOADER, "dataset.val_fraction=0"]


def fails(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_want_of_memory_while_an_image_is_decoded(kind, tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    for number in range(3):
        image = np.full((9, 9, 3), 80 * number, np.uint8)
        cv2.imwrite(str(tmp_path / f"cat/{number}.{kind}"), image)
    config = compose(["dataset=image_folder", f"dataset.storage.path={tmp_path}", *SMALL])
    assert len(digests(config, epochs=1, **INLINE)[0]) == 1
    # The words of libjpeg and of Pillow.
    monkeypatch.setattr("simplejpeg.decode_jpeg", fails(ValueError("Insufficient memory (case 4)")))
    said = OSError("out of memory when reading image file")
    monkeypatch.setattr(ImageFile.ImageFile, "load", fails(said))
    with pytest.raises((MemoryError, OSError, RuntimeError), match="memory"):
        digests(config, **INLINE)


@contextlib.contextmanager
def without_descriptors():
    """Let this process open no more files."""
    gc.collect()  # later it would close files of earlier loaders, and leave descriptors
    lowest_free = os.dup(0)
    os.close(lowest_free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def rows_of(photos: Path, folder: Path) -> Path:
    """Write image files into a table of SQLite, the folder as the label."""
    with contextlib.closing(sqlite3.connect(folder / "rows.db")) as rows, rows:
        rows.execute("CREATE TABLE photos (key TEXT PRIMARY KEY, label TEXT, image BLOB)")
        for path in sorted(photos.rglob("*.*")):
            row = str(path.relative_to(photos)), path.parent.name, path.read_bytes()
            rows.execute("INSERT INTO photos VALUES (?, ?, ?)", row)
    return folder / "rows.db"


@pytest.mark.parametrize("dataset", ["image_folder", "sql", "zip", "arrow", "parquet"])
def test_no_descriptors_are_left_for_a_storage(dataset, photos, tmp_path, monkeypatch):
    source = ["dataset=image_folder", f"dataset.storage.path={photos}"]
    if dataset == "sql":
        source = ["dataset=sql", f"dataset.storage.url=sqlite:///{rows_of(photos, tmp_path)}"]
    elif dataset != "image_folder":
        target = [f"pack.to={dataset}", f"pack.path={tmp_path}/packed", "pack.num_workers=0"]
        assert penstock("pack", *source, *target) == 0
        source = [f"dataset={dataset}", f"dataset.storage.path={tmp_path}/packed"]
    config = compose([*source, *SMALL])
    [expected] = digests(config, epochs=1, **INLINE)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # a read is tried several times
    with loader_of(config, **INLINE) as loader:
        with without_descriptors(), pytest.raises(OSError, match="Too many open files"):
            next(iter(loader))
        assert loader.stats.bad_samples == 0
    assert digests(config, epochs=1, **INLINE) == [expected]


def test_no_descriptors_are_left_for_a_label_file(tmp_path, monkeypatch):
    (tmp_path / "annotations").mkdir()
    cv2.imwrite(str(tmp_path / "a.jpg"), np.zeros((9, 9, 3), np.uint8))
    (tmp_path / "annotations/a.xml").write_text("<annotation></annotation>")
    data = [
        "dataset=image_folder",
        f"dataset.storage.path={tmp_path}",
        "dataset.storage.labels=null",
    ]
    data += ["dataset/annotations=voc", "dataset.annotations.missing=empty", "collate=list"]
    config = compose([*data, *SMALL])
    assert len(digests(config, epochs=1, **INLINE)[0]) == 1
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    for number, (module, name) in enumerate(((builtins, "open"), (os, "stat"))):
        call = getattr(module, name)

        def broken(path, *given, call=call, **named):
            if str(path).endswith(".xml"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return call(path, *given, **named)

        os.utime(tmp_path / "annotations/a.xml", (0, number))  # the cache is of another time
        with monkeypatch.context() as patch, pytest.raises(OSError, match="Too many open files"):
            patch.setattr(module, name, broken)
            digests(config, **INLINE)


def failing(photos: Path) -> list[str]:
    """Return the overrides of a run that wants too much memory for one record."""
    step = "augment.train.fails={_target_: transform/laws_greedy, record: 12}"
    return [*overrides(photos), step]


@pytest.mark.parametrize("engine", ["inline", "threads", "processes", "torch"])
def test_want_of_memory_replaces_no_record(engine, photos):
    config = compose([*failing(photos), "loader.on_error=replace"])
    with loader_of(config, **way(engine)) as loader:
        with pytest.raises(MemoryError):
            list(loader)


def test_an_item_of_a_torch_dataset_meets_trouble(photos):
    data = ["dataset=torch", "dataset.target=tests.laws.torch_components.Troubled"]
    config = compose([IMPORTS, *data, *LOADER, "dataset.val_fraction=0", "augment=none"])
    with pytest.raises(OSError, match="Too many open files"):
        digests(config, **INLINE)


def test_a_program_that_lacks_memory_ends_with_a_line_of_settings_to_lower(
    photos, tmp_path, capsys
):
    run = ["model.width=8", "trainer.device=cpu", "trainer.progress=off", f"outputs={tmp_path}"]
    for engine in ("inline", "processes", "torch"):
        loader = [f"loader={engine}", "loader.num_workers=2"]
        assert penstock("train", *failing(photos), *run, *loader) != 0
        said = capsys.readouterr().err
        assert "lower loader.batch_size" in said and "trainer.accumulate=2" in said
        assert "Traceback" not in said
