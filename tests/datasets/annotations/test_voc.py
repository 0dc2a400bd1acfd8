"""Pascal VOC: what becomes of its XML."""

from __future__ import annotations

import logging
import os

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.annotations.voc import VocAnnotations
from penstock.pipeline.build import build_dataset
from penstock.pipeline.samplers.weighted import WeightedSampler
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>
<xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax>
</bndbox></object>"""


def xml(file_name: str, *objects: str, size: tuple[int, int] = (640, 480)) -> str:
    width, height = size
    return (
        f"<annotation><filename>{file_name}</filename><size><width>{width}</width>"
        f"<height>{height}</height><depth>3</depth></size>{''.join(objects)}</annotation>"
    )


def one(name: str, *box: float, difficult: int = 0) -> str:
    return OBJECT.format(name=name, box=box, difficult=difficult)


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "set", ["images/a.jpg", "images/b.jpg", "images/c.jpg"])
    folder = tmp_path / "set/annotations"
    folder.mkdir()
    (folder / "a.xml").write_text(xml("a.jpg", one("red", 1, 1, 10, 20), one("dot", 5, 6, 5, 6)))
    (folder / "b.xml").write_text(xml("b.jpg"))
    (folder / "c.xml").write_text(xml("c.jpg", one("red", 600, 400, 700, 500, difficult=1)))
    return tmp_path / "set"


def expected() -> list[dict]:
    def fields(boxes, labels, difficult):
        return {
            "boxes": np.array(boxes, np.float32).reshape(-1, 4),
            "box_labels": np.array(labels, np.int64),
            "box_difficult": np.array(difficult, np.int64),
            "box_truncated": np.zeros(len(labels), np.int64),
            "stated_size": np.array((640, 480) if labels else (0, 0), np.int32),
        }

    # Pixels count from 1 and the last one belongs to the box: 5 .. 5 is one pixel wide.
    return [
        fields([[0, 0, 10, 20], [4, 5, 5, 6]], [1, 0], [0, 0]),
        fields([], [], []),
        fields([[599, 399, 640, 480]], [1], [1]),
    ]


def test_the_experiment_opens_the_set_as_it_is_downloaded(root):
    (root / "images").rename(root / "JPEGImages")
    (root / "annotations").rename(root / "Annotations")
    config = compose(["experiment=bccd", f"dataset.storage.path={root}", "dataset.val_fraction=0"])
    dataset = build_dataset(config, "train")
    assert dataset.index.keys(np.arange(3)) == [f"JPEGImages/{name}.jpg" for name in "abc"]
    assert dataset.index.column("boxes").tolist() == [2, 0, 1]


def test_it_is_a_storage(root):
    keys = [f"images/{name}.jpg" for name in "abc"]
    images = [b"image " + key.encode() for key in keys]
    wanted = [
        (key, {"image": image, **fields})
        for key, image, fields in zip(keys, images, expected(), strict=True)
    ]
    check_storage(lambda: open_annotated(root, VocAnnotations()), wanted)
    index = open_annotated(root, VocAnnotations()).index
    assert index.field_classes == {"box_labels": ("dot", "red")}
    assert index.column("boxes").tolist() == [2, 0, 1]


def test_boxes_follow_the_records_of_a_part(root):
    for split in ("train", "val"):
        part = open_annotated(root, VocAnnotations(), split=split, fraction=0.5)
        for record in part.read(np.arange(len(part))):
            row = "abc".index(record.key[7])
            assert (record.fields["boxes"] == expected()[row]["boxes"]).all()


def test_options(root):
    dropped = open_annotated(root, VocAnnotations(difficult="drop"))
    assert [len(fields["boxes"]) for fields in fields_of(dropped)] == [2, 0, 0]
    zero = fields_of(open_annotated(root, VocAnnotations(one_based=False)))
    assert zero[0]["boxes"].tolist() == [[1, 1, 10, 20]]  # and 5 .. 5 has no area


def test_an_edited_file_is_read_again(root):
    before = open_annotated(root, VocAnnotations())
    (root / "annotations/b.xml").write_text(xml("b.jpg", one("red", 2, 2, 3, 3)))
    after = open_annotated(root, VocAnnotations())
    assert [len(fields["boxes"]) for fields in fields_of(after)] == [2, 1, 1]
    assert before.fingerprint() != after.fingerprint()


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("<annotation><obj", "b.xml is no XML"),
        ("", "b.xml is no XML"),
        (xml("other.jpg"), "names another file, 'other.jpg'"),
        (xml("b.jpg", one("", 1, 1, 2, 2)), "an object has no name"),
        (xml("b.jpg", one("red", 1, 1, "wide", 2)), "bndbox.xmax is 'wide', expected a number"),
        (xml("b.jpg", "<object><name>red</name></object>"), "an object has no bndbox.xmin"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + xml("b.jpg"), "declares a document type"),
    ],
)  # fmt: skip
def test_a_broken_file_makes_its_record_bad_and_no_other(root, text, cause):
    (root / "annotations/b.xml").write_text(text)
    found = fields_of(open_annotated(root, VocAnnotations()))
    assert cause in found[1] and "\n" not in found[1]
    assert found[0]["boxes"].shape == (2, 4) and found[2]["boxes"].shape == (1, 4)


@pytest.mark.parametrize("box", [(9, 9, 3, 12), ("nan", 1, 2, 3), (900, 10, 950, 20), (0, 0, 0, 0)])
def test_boxes_without_area(root, box, caplog):
    (root / "annotations/b.xml").write_text(xml("b.jpg", one("red", *box), one("dot", 1, 1, 2, 2)))
    with caplog.at_level(logging.WARNING):
        found = fields_of(open_annotated(root, VocAnnotations()))
    assert found[1]["boxes"].tolist() == [[0, 0, 2, 2]] and found[1]["box_labels"].tolist() == [0]
    assert "1 boxes have no area" in caplog.text and "images/b.jpg" in caplog.text
    found = fields_of(open_annotated(root, VocAnnotations(bad_boxes="record")))
    assert "has no area in its image" in found[1]


def test_what_is_missing(root):
    os.unlink(root / "annotations/b.xml")
    with pytest.raises(ValueError, match=r"1 of 3 records have no XML, such as 'images/b.jpg'"):
        open_annotated(root, VocAnnotations())
    found = fields_of(open_annotated(root, VocAnnotations(missing="empty")))
    assert found[1]["boxes"].shape == (0, 4)
    with pytest.raises(
        ValueError, match=r"nowhere: no such folder; set dataset\.annotations\.path"
    ):
        open_annotated(root, VocAnnotations("nowhere"))
    with pytest.raises(ValueError, match=r"names the part, but .* name the folder .*path=labels$"):
        open_annotated(root, VocAnnotations("{part}/annotations"))
    with pytest.raises(ValueError, match=r"such as dataset\.annotations\.path=annotations$"):
        open_annotated(root, VocAnnotations("annotations/{part}"))
    open_annotated(root, VocAnnotations("annotations", missing="empty"))


def test_nothing_that_can_be_used(root):
    for name in "abc":
        (root / f"annotations/{name}.xml").write_text("no")
    with pytest.raises(ValueError, match="no record has annotations that can be used"):
        open_annotated(root, VocAnnotations())


def test_parts_share_their_classes(tmp_path):
    for part, names in (("train", ("ape", "bee")), ("val", ("bee",))):
        write_images(tmp_path / part, ["x.jpg"])
        (tmp_path / f"labels_{part}").mkdir()
        boxes = [one(name, 1, 1, 5, 5) for name in names]
        (tmp_path / f"labels_{part}/x.xml").write_text(xml("x.jpg", *boxes))
    val = open_annotated(tmp_path, VocAnnotations("labels_{part}"), split="val")
    assert fields_of(val)[0]["box_labels"].tolist() == [1]
    text = xml("x.jpg", one("cow", 1, 1, 5, 5))
    (tmp_path / "labels_val/x.xml").write_text(text)
    with pytest.raises(ValueError, match="'cow' is not among the 2 classes"):
        open_annotated(tmp_path, VocAnnotations("labels_{part}"), split="val")


def test_records_are_weighed_by_their_rarest_box(tmp_path):
    names = [f"{number:02d}" for number in range(12)]
    write_images(tmp_path, [f"{name}.jpg" for name in names])
    (tmp_path / "annotations").mkdir()
    for number, name in enumerate(names):
        kinds = ["red"] * (number % 3) + ["dot"] * (number == 4)  # number 4 has both
        boxes = (one(kind, 1, 1, 10, 20) for kind in kinds)
        (tmp_path / f"annotations/{name}.xml").write_text(xml(f"{name}.jpg", *boxes))
    storage = open_annotated(tmp_path, VocAnnotations())
    rarest = [-1, 1, 1] * 4
    rarest[4] = 0
    assert storage.index.column("rarest_box_label").tolist() == rarest
    uses = WeightedSampler(12, storage.index).uses()
    classes = np.array(rarest)
    shares = [uses[classes == number].sum() / uses.sum() for number in (-1, 0, 1)]
    np.testing.assert_allclose(shares, 1 / 3)
    uses = WeightedSampler(12, storage.index, weights={"dot": 5, "red": 0}).uses()
    assert (uses / uses[4] * 5).round(6).tolist() == [{-1: 1, 0: 5, 1: 0}[each] for each in rarest]
    with pytest.raises(ValueError, match="no class 'rad'; classes: dot, red"):
        WeightedSampler(12, storage.index, weights={"rad": 2})


def test_the_experiment_draws_by_weight(root):
    config = compose(["experiment=bccd", f"dataset.storage.path={root}", "dataset.val_fraction=0",
                      "sampler=weighted", "loader=inline", "loader.batch_size=3",
                      "augment=as_is"])  # fmt: skip
    (root / "images").rename(root / "JPEGImages")
    for name in "abc":
        cv2.imwrite(str(root / f"JPEGImages/{name}.jpg"), np.zeros((480, 640, 3), np.uint8))
    with build_loader(config, "train") as loader:
        assert sum(len(batch["boxes"]) for batch in loader) == 3
