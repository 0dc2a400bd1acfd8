"""Zarr arrays: the contract of storages on both versions, columns, chunks, damage, refusals."""

from __future__ import annotations

import json
import logging
import shutil
import sys

import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.core.sample import BadRecord
from tests.contracts.storage import check_storage, read_all

N = 13
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 255, (N, 6, 5, 3), np.uint8)
LABELS = np.arange(N) % 3
DEPTH = RNG.random((N, 4)).astype(">f4")
EXPECTED = [
    (str(i), {"image": IMAGES[i], "label": int(LABELS[i]), "depth": DEPTH[i].astype("<f4")})
    for i in range(N)
]


def write(folder, *, version=3, **others):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(folder, mode="w", zarr_format=version)
    for name, array, rows in (("images", IMAGES, 4), ("labels", LABELS, 5), ("depth", DEPTH, 13)):
        chunks = (rows, *array.shape[1:])
        sharded = {"shards": (8, *array.shape[1:])} if version == 3 and name == "images" else {}
        made = group.create_array(
            name, shape=array.shape, chunks=chunks, dtype=array.dtype, **sharded
        )
        made[:] = array
    for name, array in others.items():
        group.create_array(name, data=array)
    return folder


@pytest.fixture
def storage(imported):
    return imported("plugins/penstock_zarr.py").ZarrStorage


@pytest.mark.ecosystem
@pytest.mark.parametrize("version", [2, 3])
def test_it_is_a_storage(storage, tmp_path, version):
    folder = str(write(tmp_path / "a", version=version))
    copy = shutil.copytree(folder, tmp_path / "b")
    check_storage(lambda: storage(folder), EXPECTED, make_copy=lambda: storage(str(copy)))
    made = storage(folder)
    assert made.column_fields == ("image", "label", "depth")
    assert made.shards().tolist() == [0, 4, 8, 12]
    assert storage(f"{folder}/images").column_fields == ("image",)
    assert storage(folder, fields={"pixels": "images"}).column_fields == ("pixels",)


@pytest.mark.ecosystem
def test_columns_are_those_of_the_records_and_each_chunk_is_read_once(storage, tmp_path):
    made = storage(str(write(tmp_path / "a")))
    rows = np.array([12, 0, 5, 5, 1])
    memory = np.zeros(rows.size * 90, np.uint8)
    taken = made.take(rows, ("image", "label", "depth"), allocate=lambda size_bytes: memory)
    assert np.array_equal(taken["image"], IMAGES[rows]) and memory[0] == IMAGES[12].flat[0]
    assert np.array_equal(taken["depth"], DEPTH[rows]) and taken["depth"].dtype == np.float32
    assert taken["label"].tolist() == LABELS[rows].tolist()
    assert made.take(rows[:0], ("image",))["image"].shape == (0, 6, 5, 3)
    shutil.rmtree(tmp_path / "a" / "images")
    assert len(made.read(rows)) == 5, "what was read is kept"


@pytest.mark.ecosystem
def test_it_trains_by_columns_the_same_batches_with_any_workers(imported, tmp_path):
    imported("plugins/penstock_zarr.py")
    batches = []
    for loader in ("inline", "processes"):
        config = compose([
            "dataset=zarr", f"dataset.storage.path={write(tmp_path / 'a')}", "dataset/decode=raw",
            "dataset.val_fraction=0", "augment=none", f"loader={loader}", "loader.batch_size=4",
        ])  # fmt: skip
        with build_loader(config, "train") as made:
            batches.append([batch["image"].numpy().tobytes() for batch in made])
    assert batches[0] == batches[1] and len(batches[0]) == 3


@pytest.mark.ecosystem
def test_a_damaged_chunk_spoils_its_own_rows_and_a_lost_one_is_said(storage, tmp_path, caplog):
    folder = write(tmp_path / "a", version=2)
    made = storage(str(folder))
    len(made)
    (folder / "images" / "1.0.0.0").write_bytes(b"damaged")
    records = read_all(made)
    bad = [record for record in records if isinstance(record, BadRecord)]
    assert [record.index for record in bad] == [4, 5, 6, 7]
    assert all("images: chunk 1 is damaged (" in record.cause for record in bad)
    assert made.take(np.array([3, 4]), ("image",)) is None
    (folder / "images" / "1.0.0.0").unlink()
    (folder / ".zgroup").touch()
    with caplog.at_level(logging.WARNING):
        assert len(storage(str(folder))) == N
    assert "1 of 4 chunks of images are not there; their values are read as 0" in caplog.text
    (folder / "labels" / "1").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"labels: chunk 1 is damaged \("):
        len(storage(str(folder)))


@pytest.mark.ecosystem
def test_what_is_refused_is_said_in_one_line(storage, tmp_path):
    import zarr

    folder = write(tmp_path / "a", short=np.zeros(4), version=2)
    shutil.copytree(folder / "images", tmp_path / "p")
    metadata = json.loads((tmp_path / "p" / ".zarray").read_text())
    (tmp_path / "p" / ".zarray").write_text(
        json.dumps({**metadata, "compressor": {"id": "pickle"}})
    )
    zarr.open_group(tmp_path / "g", mode="w").create_group("train")
    for path, chosen, said in (
        ("a", None, r"depth \[13, 4\], short \[4\], expected a row for each sample in all"),
        ("a", {"image": "nothing"}, "no array 'nothing', the arrays are depth, images, labels, sh"),
        ("a", {"image": "depth"}, "images are float32 .*, expected uint8"),
        ("a", {"label": "depth"}, r"label is float32 \[13, 4\], expected integers \[N\]"),
        ("p", None, r"\(ValueError: No Zarr data type .*pickle"),
        ("g", None, "no arrays in there, the groups are train; set dataset.storage.path to"),
        ("x", None, r"no Zarr group or array in there \(FileNotFoundError: .*set dataset.stor"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            len(storage(str(tmp_path / path), fields=chosen))
        assert "\n" not in str(error.value)
    (folder / "depth" / ".zarray").write_text("{")
    with pytest.raises(ValueError) as error:
        len(storage(str(folder)))
    assert "\n" not in str(error.value)


def test_without_the_library_it_is_named(storage, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(
        ValueError, match=r"the package zarr is missing, .*; run: pip install 'zarr>=3'$"
    ):
        len(storage(str(tmp_path)))
