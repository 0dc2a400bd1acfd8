from __future__ import annotations

import numpy as np
import pytest

from datasets.sample import BadRecord, Record
from datasets.storages.lmdb import LmdbStorage, write_lmdb
from datasets.tiled_storage import TiledStorage
from pipeline.commands.pack import tiled_recode
from tests.encoded_images import OTHERS
from tests.memory_storage import MemoryStorage
from tests.photographs import photograph, turned
from transforms.decode.image import ImageDecoder
from transforms.formats.sniff import read_header

FILES = [
    photograph(97, 131),
    photograph(64, 64, sampling="grey"),
    photograph(97, 131, progressive=True),
    turned(97, 131, 6),
    OTHERS["PNG RGBA"],
]
DECODE = {"_target_": "decode/image", "mode": "RGB"}


def recode(quality: int = 95, **decode: object):
    return tiled_recode({"dataset": {"decode": {**DECODE, **decode}}}, quality)


def test_packed_tiles_are_upright_images_of_the_true_size(tmp_path):
    source = MemoryStorage([{"image": data, "label": i} for i, data in enumerate(FILES)])
    write_lmdb(tmp_path / "packed", TiledStorage(source, recode()))
    packed = LmdbStorage(str(tmp_path / "packed"))
    assert packed.index.keys(np.arange(5)) == source.index.keys(np.arange(5))
    for i, record in enumerate(packed.read(np.arange(5))):
        assert isinstance(record, Record) and record.fields["label"] == i
        data = record.fields["image"]
        header, before = read_header(data), ImageDecoder().decode(FILES[i])
        image = ImageDecoder().decode(data)
        assert header.scan is not None and header.scan.tile_lengths and header.orientation == 1
        assert image.shape == before.shape
        assert header.components == (1 if i == 1 else 3)
        # Grey loses what quality takes; colour is halved in both directions as well.
        assert np.abs(image.astype(int) - before).mean() < (2 if i == 1 else 14)


def test_quality_is_what_is_asked_for():
    sizes = [len(recode(quality)(FILES[0])) for quality in (30, 80, 100)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[2] / 2


def test_bad_images_stay_bad_records_and_their_neighbours_whole():
    source = MemoryStorage([{"image": FILES[0]}, {"image": FILES[0][:900]}, {"label": 3}, "gone"])
    tiled = TiledStorage(source, recode())
    good, damaged, other, gone = tiled.read(np.arange(4))
    assert isinstance(good, Record) and read_header(good.fields["image"]).scan is not None
    assert isinstance(damaged, BadRecord) and "JPEG" in damaged.cause
    assert isinstance(other, Record) and other.fields == {"label": 3}
    assert isinstance(gone, BadRecord)
    assert (len(tiled), str(tiled)) == (len(source), str(source))
    assert tiled.fingerprint() == source.fingerprint()


def test_what_cannot_be_tiled_is_refused():
    with pytest.raises(ValueError, match="mode RGB or L"):
        recode(mode="RGBA")
