"""A loader returns the stored data: the right record, the right pixels, no damage unseen."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.commands import main
from tests.digests import batch_digest

COUNT = 12
PLAIN = ["loader=inline", "loader.batch_size=4", "dataset.val_fraction=0", "collate=list",
         "collate.stacked=[]"]  # fmt: skip
MARK = b"a byte of these is flipped"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """JPEG files that a decoder can decode in part, of several sizes."""
    folder = tmp_path_factory.mktemp("photographs")
    rng = np.random.default_rng(2)
    for number in range(COUNT):
        height, width = rng.integers(200, 330, 2).tolist()
        coarse = rng.integers(0, 256, (9, 9, 3), np.uint8)
        image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number:02d}.jpg"), image)
    return folder


@pytest.fixture(scope="module")
def tiled(photographs, tmp_path_factory):
    """The same in LMDB, in tiles."""
    folder = tmp_path_factory.mktemp("tiled") / "packed"
    pack(photographs, folder, "lmdb", "pack.tiled=true", "pack.quality=90")
    return folder


def pack(source: Path, folder: Path, to: str, *overrides: str) -> None:
    given = [f"dataset.storage.path={source}", "dataset.storage.labels=null",
             "dataset.val_fraction=0", f"pack.to={to}", f"pack.path={folder}"]  # fmt: skip
    assert main(["pack", *given, *overrides]) == 0


@pytest.mark.parametrize("form", ["files", "tiled"])
def test_decoding_in_part_gives_the_pixels_of_decoding_whole(form, photographs, tiled):
    data = [f"dataset.storage.path={photographs}", "dataset.storage.labels=null"]
    if form == "tiled":
        data = ["dataset=lmdb", f"dataset.storage.path={tiled}/train"]
    augment = ["augment=imagenet", "augment.image_size=48", "augment.eval_size=48"]
    found = []
    for region in ([], ["dataset.decode.region=whole"]):
        config = compose([*data, *augment, *PLAIN, *region])
        with build_loader(config, "train") as loader:
            found.append([batch_digest(batch) for _ in range(4) for batch in loader])
    assert found[0] == found[1]


def test_a_row_of_arrays_is_that_of_its_index(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (300, 4, 4, 3), np.uint8)
    values = rng.normal(size=300).astype(np.float32)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "value.npy", values)
    config = compose(
        ["dataset=memmap", f"dataset.storage.path={tmp_path}", "augment=as_is", "sampler=random",
         "loader=threads", "loader.num_workers=2", "loader.batch_size=20",
         "dataset.val_fraction=0"]
    )  # fmt: skip
    with build_loader(config, "train") as loader:
        for batch in loader:
            index = batch["index"].numpy()
            assert np.array_equal(batch["image"].numpy(), images[index])
            assert np.array_equal(batch["value"].numpy(), values[index])


@pytest.mark.parametrize("to", ["lmdb", "zip", "webdataset", "parquet"])
def test_a_flipped_byte_of_packed_data_makes_its_record_a_bad_one(to, photographs, tmp_path):
    """The byte follows the pixels, where no decoder reads."""
    marked = tmp_path / "marked"
    marked.mkdir()
    for file in photographs.iterdir():
        (marked / file.name).write_bytes(file.read_bytes() + MARK * (file.name == "07.jpg"))
    pack(marked, tmp_path / to, to)
    flipped = 0
    for path in (path for path in (tmp_path / to).rglob("*") if path.is_file()):
        data = path.read_bytes()
        flipped += data.count(MARK)
        path.write_bytes(data.replace(MARK, MARK.replace(b"byte", b"bite")))
    assert flipped == 1
    config = compose(
        [f"dataset={to}", f"dataset.storage.path={tmp_path / to}/train", "loader.on_error=skip",
         "loader.max_error_rate=1", *PLAIN]
    )  # fmt: skip
    with build_loader(config, "train") as loader:
        keys = {key for batch in loader for key in batch["key"]}
    # The unit of reading of Parquet is a group of rows, here all of them.
    assert len(keys) == (0 if to == "parquet" else COUNT - 1)
    assert not any("07" in key for key in keys)
