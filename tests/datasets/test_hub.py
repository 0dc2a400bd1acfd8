"""Data sets of the public hub: those that it saved here, and those that are read from there."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.parquet import ParquetStorage

NAMES = ["red", "green", "blue"]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants, hf_file_system

    from tests.hub import serving

    with serving() as served:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        hf_file_system.HfFileSystem.clear_instance_cache()
        yield served
        hf_file_system.HfFileSystem.clear_instance_cache()


def _parquet(count):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for number in range(count):
        Image.new("RGB", (8, 8), (20 * number, 0, 0)).save(png := io.BytesIO(), "png")
        rows.append({"bytes": png.getvalue(), "path": f"{number}.png"})
    labels = pa.array([n % 3 for n in range(count)], pa.int64())
    features = {"label": {"names": NAMES, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": rows, "label": labels}).replace_schema_metadata(metadata)
    pq.write_table(table, written := io.BytesIO(), row_group_size=2)
    return written.getvalue()


@pytest.mark.ecosystem
def test_a_data_set_of_the_hub_is_downloaded_once(hub):
    hub.repositories["owner/shapes"] = {
        ".gitattributes": b"",
        "data/train-00000-of-00001.parquet": _parquet(8),
        "data/validation-00000-of-00001.parquet": _parquet(4),
    }
    for _ in range(2):
        recipe = StorageRecipe(ParquetStorage, {"path": "hf://datasets/owner/shapes"})
        storage = open_split(recipe, split="train", val_fraction=0.2)
        assert storage.index.class_names == tuple(NAMES)
        assert [r.fields["label"] for r in storage.read(np.array([7, 0]))] == [1, 0]
        assert len(open_split(recipe, split="val", val_fraction=0.2)) == 4
    assert len(hub.sent) == 2, "each file is copied once"
    train = "hf://datasets/owner/shapes@refs/convert/parquet/data/train-*.parquet"
    assert (
        len(ParquetStorage(StorageRecipe(ParquetStorage, {"path": train}).arguments["path"])) == 8
    )
    hub.repositories["owner/gated"] = {"a.parquet": b"a"}
    hub.gated.add("owner/gated")
    for name in ("owner/gated", "owner/none"):
        with pytest.raises(ValueError, match=rf"^hf://datasets/{name}: .*HF_TOKEN") as raised:
            StorageRecipe(ParquetStorage, {"path": f"hf://datasets/{name}"})
        assert "\n" not in str(raised.value)
