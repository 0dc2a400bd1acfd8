"""Given splits: the test part never trains or validates, and parts are found where they lie."""

import csv
import io
import json
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest
from PIL import Image

from penstock import build_loader, compose

FRACTION = "dataset.val_fraction=0.5"
RAW = ("dataset/decode=raw", "augment=as_is")


def keys(split, *overrides):
    small = ["loader=inline", "loader.batch_size=4", "loader.drop_last=false"]
    loader = build_loader(compose([*small, *overrides]), split)
    return sorted(key for batch in loader for key in batch["key"])


def put_images(root, names):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (9 * number, 0, 0)).save(root / name)
    return root


def put_boxes(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("0 0.5 0.5 0.5 0.5\n")


def check_test_is_left(*overrides, train, test):
    """Check that validation is split off `train` and that `test` is the test split."""
    trained, validated = (keys(split, FRACTION, *overrides) for split in ("train", "val"))
    assert trained and validated
    assert sorted(trained + validated) == sorted(train)
    assert keys("test", FRACTION, *overrides) == sorted(test)


def table(first, count):
    rows = {"x": [float(first + n) for n in range(count)], "label": [n % 2 for n in range(count)]}
    return pa.table({"key": [f"k{first + n}" for n in range(count)], **rows})


def write_csv(path, first, count):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        content = table(first, count)
        writer.writerow(content.column_names)
        writer.writerows(zip(*content.to_pydict().values(), strict=True))


def write_arrow(path, first, count):
    content = table(first, count)
    with pa.ipc.new_file(path, content.schema) as writer:
        writer.write_table(content)


def write_parquet(path, first, count):
    pa.parquet.write_table(table(first, count), path)


def numbered(first, count):
    return [f"k{first + n}" for n in range(count)]


@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("seg_train", "seg_test")])
def test_folders(tmp_path, train, test):
    put_images(tmp_path / train, names := [f"{'ab'[n % 2]}/{n}.png" for n in range(12)])
    put_images(tmp_path / test, ["a/100.png", "b/101.png"])
    place = "dataset=image_folder", f"dataset.storage.path={tmp_path}"
    check_test_is_left(*place, train=names, test=["a/100.png", "b/101.png"])
    assert keys("val", *place, "dataset.val_fraction=0") == []


@pytest.mark.parametrize(
    ("form", "write"), [("csv", write_csv), ("arrow", write_arrow), ("parquet", write_parquet)]
)
def test_files(tmp_path, form, write):
    write(tmp_path / f"train.{form}", 0, 12)
    write(tmp_path / f"test.{form}", 100, 3)
    named = [f"dataset={form}", f"dataset.storage.path={tmp_path}", *RAW]
    check_test_is_left(*named, train=numbered(0, 12), test=numbered(100, 3))


def test_shards_of_the_hub_by_a_relative_path(tmp_path, monkeypatch):
    (tmp_path / "set" / "data").mkdir(parents=True)
    for part, first, count in (("train", 0, 12), ("test", 100, 3)):
        write_parquet(tmp_path / "set" / "data" / f"{part}-00000-of-00001.parquet", first, count)
    monkeypatch.chdir(tmp_path)
    named = ["dataset=parquet", *RAW]
    for path in ("set", "./set/data", str(tmp_path / "set")):
        place = f"dataset.storage.path={path}"
        check_test_is_left(*named, place, train=numbered(0, 12), test=numbered(100, 3))


def test_groups_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "data.h5", "w") as file:
        for part, count in (("train", 12), ("test", 3)):
            file[f"{part}/images"] = np.zeros((count, 8, 8, 3), np.uint8)
            file[f"{part}/labels"] = np.arange(count) % 2
    place = "dataset=hdf5", f"dataset.storage.path={tmp_path}/data.h5"
    trained, validated = (keys(split, FRACTION, *place) for split in ("train", "val"))
    assert trained and validated and len(trained + validated) == 12
    assert not set(trained) & set(validated)
    assert len(keys("test", *place)) == 3


def test_streams(tmp_path):
    for part, first, count in (("train", 0, 12), ("test", 100, 3)):
        (tmp_path / part).mkdir()
        rows = ({"key": f"k{first + n}", "x": [n]} for n in range(count))
        (tmp_path / part / "a.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    named = ["dataset=stream", "dataset/source=jsonl", *RAW]
    named += [f"dataset.source.path={tmp_path}"]
    check_test_is_left(*named, train=numbered(0, 12), test=numbered(100, 3))


def test_coco(tmp_path):
    parts = {"train2017": [f"{n}.png" for n in range(12)], "test2017": ["100.png", "101.png"]}
    (tmp_path / "annotations").mkdir()
    for part, names in parts.items():
        put_images(tmp_path / part, names)
        images = [{"id": n, "file_name": name, "width": 8, "height": 8}
                  for n, name in enumerate(names)]  # fmt: skip
        boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [1, 1, 4, 4]}
                 for n in range(len(names))]  # fmt: skip
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
        (tmp_path / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    named = ["dataset=image_folder", "dataset.storage.labels=null", "dataset/annotations=coco"]
    named += [f"dataset.storage.path={tmp_path}", "collate=list"]
    named += ["dataset.annotations.path='annotations/instances_{part}.json'"]
    check_test_is_left(*named, train=parts["train2017"], test=parts["test2017"])


YOLO = ("dataset=image_folder", "dataset/annotations=yolo", "task=detection")


def test_parts_of_yolo_in_images_and_labels(tmp_path):
    for part, numbers in (("train", range(8)), ("val", range(20, 23)), ("test", range(30, 32))):
        put_images(tmp_path / "images" / part, [f"{n}.png" for n in numbers])
        put_boxes(tmp_path / "labels" / part, [f"{n}.txt" for n in numbers])
    place = *YOLO, f"dataset.storage.path={tmp_path}"
    assert keys("train", *place) == [f"{n}.png" for n in range(8)]
    assert keys("val", *place) == ["20.png", "21.png", "22.png"]
    assert keys("test", *place) == ["30.png", "31.png"]


def test_parts_of_roboflow_and_the_remedy_for_its_data_yaml(tmp_path):
    for part, numbers in (("train", range(8)), ("valid", range(20, 23)), ("test", range(30, 32))):
        put_images(tmp_path / part / "images", [f"{n}.png" for n in numbers])
        put_boxes(tmp_path / part / "labels", [f"{n}.txt" for n in numbers])
    (tmp_path / "data.yaml").write_text(
        "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnames: [a]\n"
    )
    with pytest.raises(ValueError, match=r"data\.yaml") as raised:
        keys("train", *YOLO, f"dataset.storage.path={tmp_path}/data.yaml")
    typed = [word for word in str(raised.value).split() if word.startswith("dataset.storage.path=")]
    assert typed == [f"dataset.storage.path={tmp_path}"]
    place = *YOLO, *typed
    assert keys("train", *place) == [f"images/{n}.png" for n in range(8)]
    assert keys("val", *place) == ["images/20.png", "images/21.png", "images/22.png"]
    assert keys("test", *place) == ["images/30.png", "images/31.png"]


def test_parts_of_masks_in_images_and_masks(tmp_path):
    for part, numbers in (("train", range(8)), ("val", range(20, 23))):
        for folder in ("images", "masks"):
            (tmp_path / folder / part).mkdir(parents=True)
        for n in numbers:
            Image.new("RGB", (8, 8)).save(tmp_path / "images" / part / f"{n}.png")
            Image.new("L", (8, 8)).save(tmp_path / "masks" / part / f"{n}.png")
    named = ["dataset=image_folder", "dataset/annotations=mask_folder", "task=segmentation"]
    named += ["dataset.annotations.classes=[a]", f"dataset.storage.path={tmp_path}"]
    named += ["dataset.storage.labels=null"]
    assert keys("train", *named) == [f"{n}.png" for n in range(8)]
    assert keys("val", *named) == ["20.png", "21.png", "22.png"]


def typed_in(error):
    words = str(error.value).replace(";", " ").replace(",", " ").split()
    return [word for word in words if word.startswith("dataset.storage.") and "[" not in word]


def test_a_path_one_level_too_high_is_refused_with_the_path_to_type(tmp_path):
    names = ["set/train/x/0.png", "set/train/y/1.png", "set/val/x/2.png", "more/x/3.png"]
    put_images(tmp_path, names)
    place = "dataset=image_folder", f"dataset.storage.path={tmp_path}"
    with pytest.raises(ValueError, match="train and val") as raised:
        keys("train", *place)
    remedy = typed_in(raised)
    assert remedy == [f"dataset.storage.path={tmp_path}/set"]
    assert keys("train", *place, *remedy) == ["x/0.png", "y/1.png"]
    assert keys("val", *place, *remedy) == ["x/2.png"]
    classes = "dataset.storage.classes=[more,set]"
    assert keys("train", *place, classes, "dataset.val_fraction=0") == sorted(names)


def test_an_archive_one_level_too_high_is_refused_with_the_folder_to_type(tmp_path):
    png = io.BytesIO()
    Image.new("RGB", (8, 8)).save(png, "png")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("set/train/x/0.png", "set/train/y/1.png", "set/val/x/2.png"):
            archive.writestr(name, png.getvalue())
    place = "dataset=zip", f"dataset.storage.path={tmp_path}/a.zip", "dataset.val_fraction=0"
    with pytest.raises(ValueError, match="train and val") as raised:
        keys("train", *place)
    assert typed_in(raised) == ["dataset.storage.folder=set/train"]
    assert keys("train", *place, *typed_in(raised)) == ["x/0.png", "y/1.png"]


@pytest.mark.parametrize("name", ["val", "test"])
def test_a_part_without_train_is_refused_with_the_path_to_type(tmp_path, name):
    put_images(tmp_path, [f"{name}/x/0.png", f"{name}/y/1.png"])
    place = "dataset=image_folder", "dataset.val_fraction=0"
    with pytest.raises(ValueError, match=name) as raised:
        keys("train", *place, f"dataset.storage.path={tmp_path}")
    assert typed_in(raised) == [f"dataset.storage.path={tmp_path}/{name}"]
    assert keys("train", *place, *typed_in(raised)) == ["x/0.png", "y/1.png"]


def test_validation_and_test_are_no_classes(tmp_path):
    put_images(tmp_path, ["val/0.png", "test/1.png"])
    with pytest.raises(ValueError, match="'val' and 'test'"):
        keys("train", "dataset=image_folder", f"dataset.storage.path={tmp_path}")


def test_train_alone_is_the_training_part(tmp_path):
    put_images(tmp_path / "train", names := [f"{'ab'[n % 2]}/{n}.png" for n in range(12)])
    place = "dataset=image_folder", FRACTION, f"dataset.storage.path={tmp_path}"
    trained, validated = (keys(split, *place) for split in ("train", "val"))
    assert trained and validated and sorted(trained + validated) == sorted(names)
