"""Fields from file names."""

from __future__ import annotations

import pickle

import pytest

from penstock.datasets.annotations.filename import FilenameFields
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

TRAIN = ["-1_c1s1_000451_03.jpg", "0002_c1s1_000451_03.jpg", "0007_c3s2_000001_00.jpg"]
VAL = ["gallery/0000_c2s1_1.jpg", "gallery/0009_c4s1_1.jpg", "query/0009_c1s1_000451_03.jpg"]


@pytest.fixture
def root(tmp_path):
    write_images(tmp_path / "train", TRAIN)
    write_images(tmp_path / "val", VAL)
    return tmp_path


def test_names_of_market_1501(root):
    expected = {
        "train": [
            {"identity": -1, "camera": 1, "role": ""},
            {"identity": 2, "camera": 1, "role": ""},
            {"identity": 7, "camera": 3, "role": ""},
        ],
        "val": [
            {"identity": 0, "camera": 2, "role": "gallery"},
            {"identity": 9, "camera": 4, "role": "gallery"},
            {"identity": 9, "camera": 1, "role": "query"},
        ],
    }
    for split, keys in (("train", TRAIN), ("val", VAL)):
        wanted = [
            (key, {"image": b"image " + key.encode(), **fields})
            for key, fields in zip(keys, expected[split], strict=True)
        ]
        check_storage(lambda s=split: open_annotated(root, FilenameFields(), split=s), wanted)
        index = open_annotated(root, FilenameFields(), split=split).index
        identities = [fields["identity"] for fields in expected[split]]
        assert index.column("identity").tolist() == identities
        # The identities to be told apart are those of the training part, but for nobody.
        assert index.field_classes["identity"] == ("2", "7")


def test_other_patterns_and_other_groups(root):
    found = fields_of(
        open_annotated(root, FilenameFields(r"(?P<who>\w+)_c(?P<seen_by>\ds\d)(_(?P<frame>7))?"))
    )
    assert found[1] == {"who": 2, "seen_by": "1s1", "frame": ""}
    assert fields_of(open_annotated(root, FilenameFields(r"(?P<frame>03)?\.jpg")))[2] == {
        "frame": -1
    }


def test_without_parts_all_records_are_read(tmp_path):
    write_images(tmp_path, TRAIN)
    storage = pickle.loads(pickle.dumps(open_annotated(tmp_path, FilenameFields(), fraction=0.5)))
    assert all({"identity", "camera", "role"} == set(fields) for fields in fields_of(storage))


def test_another_pattern_is_another_set(root):
    one, other = (
        open_annotated(root, FilenameFields(pattern)).fingerprint()
        for pattern in (r"(?P<identity>-?\d+)", r"c(?P<identity>\d+)")
    )
    assert one != other


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", r"pattern '\(' is not a regular expression .*; for example"),
        (r"(\d+)", "lacks a named group; for example"),
        (r"(?P<label>\d+)", "has a group 'label', which is a field of every sample; name it"),
        (r"^(?P<identity>\d{4})_", r"is not found in 1 of 3 names, such as '-1_c1s1_0004"),
    ],
)
def test_patterns_that_make_no_sense_are_refused(root, pattern, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_annotated(root, FilenameFields(pattern))
    assert "\n" not in str(caught.value)


def test_parts_must_have_names_of_one_kind(root):
    write_images(root / "val", ["x9_c1s1_000451_03.jpg"])
    with pytest.raises(ValueError, match="'identity' is a whole number in the training part and"):
        open_annotated(root, FilenameFields(r"(?P<identity>[\w-]+)_c\ds"), split="val")
