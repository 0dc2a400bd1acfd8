"""Data sets of the public hub: those that it saved here, and those that are read from there."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from penstock.datasets.files.clients import RemoteError
from penstock.datasets.records.hub_card import card_configs
from penstock.datasets.records.splits import StorageRecipe, find_parts, open_split
from penstock.datasets.storages.arrow import ArrowStorage
from penstock.datasets.storages.parquet import ParquetStorage

NAMES = ["red", "green", "blue"]
CARD = """---
license: mit
configs:
- config_name: plain_text
  data_files:
  - split: train
    path: plain_text/train-*
  - split: test
    path: [plain_text/a.parquet, plain_text/b.parquet]
---
# Shapes
"""
MANY = """---
configs:
- {config_name: en, data_files: [{split: train, path: en/train-*}]}
- {config_name: de, data_dir: de}
---
"""


def listed(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def test_a_card_says_which_files_are_the_parts(tmp_path):
    listed(tmp_path, ["plain_text/train-0.parquet", "other/train-00000-of-00001.parquet"])
    (tmp_path / "README.md").write_text(CARD)
    assert find_parts(tmp_path) == {
        "train": f"{tmp_path}/plain_text/train-*",
        "test": f"{tmp_path}/{{plain_text/a.parquet,plain_text/b.parquet}}",
    }


def test_several_data_sets_in_one_repository(tmp_path):
    (tmp_path / "README.md").write_text(MANY)
    with pytest.raises(ValueError, match=r"is 2 data sets; type the path of one: en \(") as raised:
        find_parts(tmp_path)
    for name in ("en", "de"):
        assert f"dataset.storage.path={tmp_path}/{name})" in str(raised.value)
    chosen = MANY.replace("{config_name: de, ", "{config_name: de, default: true, ")
    (tmp_path / "README.md").write_text(chosen)
    listed(tmp_path, [f"de/{name}-00000-of-00001.parquet" for name in ("train", "test")])
    assert find_parts(tmp_path)["train"] == f"{tmp_path}/de/train-*-of-*.parquet"


@pytest.mark.parametrize(
    "text", ["# Title", "---\nnever: [closed\n---\n", "---\nconfigs: 3\n---\n"]
)
def test_a_readme_of_something_else_says_nothing(text):
    assert card_configs(text) == []


# Run from elsewhere: in the checkout its own folder `datasets` would be imported.
WRITE = """
import datasets, numpy, sys
from PIL import Image
names = ["red", "green", "blue"]
features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=names)})
def part(count):
    images = [Image.fromarray(numpy.full((8, 8, 3), 20 * n, numpy.uint8)) for n in range(count)]
    rows = {"image": images, "label": [n % 3 for n in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features)
datasets.DatasetDict(train=part(7), validation=part(4), test=part(3)).save_to_disk("set")
"""


@pytest.mark.ecosystem
def test_what_save_to_disk_wrote(tmp_path):
    run = [sys.executable, "-c", f"import sys; sys.path.remove('')\n{WRITE}"]
    done = subprocess.run(run, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=120)
    if "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr:
        pytest.skip(f"datasets cannot be imported: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    recipe = StorageRecipe(ArrowStorage, {"path": str(tmp_path / "set")})
    for split, count in (("train", 7), ("val", 4), ("test", 3)):
        storage = open_split(recipe, split=split, val_fraction=0.2)
        assert storage.index.class_names == tuple(NAMES)
        for number, record in enumerate(storage.read(np.arange(count))):
            assert record.fields["label"] == number % 3
            pixels = np.asarray(Image.open(io.BytesIO(record.fields["image"])))
            assert (pixels == 20 * number).all()
        assert len(storage) == count


@pytest.fixture
def hub(monkeypatch):
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants, hf_file_system

    from penstock.datasets.files import clients
    from tests.hub import serving

    with serving() as served:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, served.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", served.url)
        hf_file_system.HfFileSystem.clear_instance_cache()
        clients._open_client.cache_clear()
        yield served
        clients._open_client.cache_clear()
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
def test_a_data_set_of_the_hub_is_read_from_there(hub):
    hub.repositories["owner/shapes"] = {
        ".gitattributes": b"",
        "data/train-00000-of-00001.parquet": (train := _parquet(8)),
        "data/validation-00000-of-00001.parquet": _parquet(4),
    }
    recipe = StorageRecipe(ParquetStorage, {"path": "hf://datasets/owner/shapes"})
    storage = open_split(recipe, split="train", val_fraction=0.2)
    assert storage.index.class_names == tuple(NAMES)
    assert [r.fields["label"] for r in storage.read(np.array([7, 0]))] == [1, 0]
    assert len(open_split(recipe, split="val", val_fraction=0.2)) == 4
    converted = "hf://datasets/owner/shapes@refs/convert/parquet/data"
    assert len(open_split(StorageRecipe(ParquetStorage, {"path": converted}), split="val",
                          val_fraction=0.2)) == 4  # fmt: skip
    assert sum(size for path, size in hub.sent if "train" in path) < 4 * len(train)


@pytest.mark.ecosystem
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("datasets/owner/typo", "the hub shows no such repository; look at its name"),
        ("datasets/owner/gated", "access is denied; ask for it on its page, then set HF_TOKEN"),
    ],
)
def test_what_the_hub_does_not_give_is_one_line(hub, path, expected):
    hub.repositories["owner/gated"] = {
        f"{name}-00000-of-00001.parquet": _parquet(2) for name in ("train", "test")
    }
    hub.gated.add("owner/gated")
    recipe = StorageRecipe(ParquetStorage, {"path": f"hf://{path}"})
    with pytest.raises(RemoteError, match=expected) as raised:
        open_split(recipe, split="train", val_fraction=0.2)
    assert "\n" not in str(raised.value)
