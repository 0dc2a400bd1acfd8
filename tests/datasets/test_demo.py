"""The demo set: the same wherever it is made, exactly described, made once, and ours alone."""

import hashlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock.core.registry import components
from penstock.datasets.annotations.coco import CocoAnnotations
from penstock.datasets.demo import shapes as demo
from penstock.datasets.demo.forms import demo_forms
from penstock.datasets.demo.shapes import CLASSES, demo_path, draw_scene
from penstock.datasets.records.splits import StorageRecipe, open_split
from penstock.datasets.storages.image_folder import ImageFolder
from penstock.datasets.streams import sources as stream_sources
from penstock.pipeline.config.components import register_components

AS_ARRAYS = ("memmap", "npy_shards", "pt_shards")


def _forms() -> list[str]:
    register_components()
    return [name for name in demo_forms() if name not in (*AS_ARRAYS, "jsonl", "image_folder")]


@pytest.fixture(autouse=True)
def loaded():
    register_components(())


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(demo, "COUNTS", {"train": 12, "val": 6})


def digest(*arrays):
    return hashlib.blake2b(b"".join(a.tobytes() for a in arrays), digest_size=8).hexdigest()


def test_scenes_are_a_function_of_their_number():
    scenes = [draw_scene(s, n) for s in (0, 1) for n in range(12)]
    again = [draw_scene(s, n) for s in (1, 0) for n in reversed(range(12))][::-1]
    pixels = {digest(scene.image) for scene in scenes}
    assert len(pixels) == 24
    assert {digest(scene.image) for scene in again} == pixels
    assert digest(*(scene.image for scene in scenes), *(scene.mask for scene in scenes)) == (
        "6a50a311e1ff239f"
    )


def test_files_and_annotations_agree(data_dir):
    root = data_dir / "demo"
    for split, count in (("train", 3000), ("val", 600)):
        images = ImageFolder(str(root / "images" / split))
        recipe = StorageRecipe(ImageFolder, {"path": str(root / "images")})
        storage = open_split(recipe, split=split, val_fraction=0.2, annotations=CocoAnnotations())
        assert len(storage) == len(images) == count
        assert storage.index.class_names == storage.index.field_classes["box_labels"] == CLASSES
        for record in storage.read(np.arange(0, count, 97)):
            pixels = cv2.imdecode(np.frombuffer(record.fields["image"], np.uint8), -1)
            mask_file = (root / "masks" / split / record.key).with_suffix(".png")
            mask = cv2.imread(str(mask_file), cv2.IMREAD_UNCHANGED)
            assert record.fields["image"][:3] == b"\xff\xd8\xff"
            assert pixels.shape == (*mask.shape, 3)
            drawn = draw_scene(("train", "val").index(split), int(Path(record.key).stem))
            assert (drawn.mask == mask).all()
            assert np.abs(drawn.image[:, :, ::-1].astype(int) - pixels).mean() < 12
            assert record.fields["label"] == drawn.label
            assert record.fields["boxes"].tolist() == drawn.boxes
            assert record.fields["box_labels"].tolist() == drawn.box_labels
            assert record.fields["keypoints"].tolist() == drawn.keypoints


def test_it_is_made_once_and_packed_once(tmp_path, small):
    images = demo_path("image_folder", tmp_path / "data")
    assert images == tmp_path / "data/demo/images"
    packed = demo_path("lmdb", tmp_path / "data")
    times = {
        p: p.stat().st_mtime_ns for p in (tmp_path / "data").rglob("*") if "lock" not in p.name
    }
    assert demo_path("image_folder", tmp_path / "data") == images
    assert demo_path("lmdb", tmp_path / "data") == packed
    assert {p: p.stat().st_mtime_ns for p in times} == times


@pytest.mark.parametrize("storage_name", _forms())
def test_every_form_holds_the_same_images_and_labels(tmp_path, small, storage_name):
    folder = demo_path(storage_name, tmp_path)
    images = demo_path("image_folder", tmp_path)
    make = {c.name: c.target for c in components() if c.group == "storage"}[storage_name]
    for split in ("train", "val"):
        packed = open_split(StorageRecipe(make, {"path": str(folder)}), split=split, val_fraction=0)
        files = ImageFolder(str(images / split))
        assert packed.index.class_names == CLASSES
        assert _sorted(packed.read(np.arange(len(packed)))) == _sorted(
            files.read(np.arange(len(files)))
        )


def _sorted(records):
    """Return the fields in one order; archives for streams have another order."""
    return sorted((record.fields for record in records), key=lambda fields: fields["image"])


@pytest.mark.parametrize("source_name", ["jsonl", "webdataset"])
def test_as_a_stream_it_has_the_same_records_with_mixed_classes(tmp_path, small, source_name):
    recipe = StorageRecipe(
        {c.name: c.target for c in components() if c.group == "source"}[source_name],
        {"path": str(demo_path(source_name, tmp_path))},
    )
    for split in ("train", "val"):
        source, keep = stream_sources.open_split(recipe, split=split, val_fraction=0.2, shards=1)
        assert keep is None and source.class_names == CLASSES
        (shard,) = source.shards(0)
        found = [source.load(item) for item in source.read(shard, 0)]
        files = ImageFolder(str(demo_path("image_folder", tmp_path) / split))
        assert _sorted(found) == _sorted(files.read(np.arange(len(files))))
        labels = [record.fields["label"] for record in found]
        assert sorted(labels[: len(CLASSES)]) == list(range(len(CLASSES)))


def test_files_of_the_user_are_left_alone(tmp_path, small):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not the demo set"):
        demo_path("image_folder", tmp_path)
    assert [p.name for p in (tmp_path / "demo").iterdir()] == ["thesis.txt"]
    with pytest.raises(ValueError, match="not made for the storage 'tape'"):
        demo_path("tape", tmp_path)
