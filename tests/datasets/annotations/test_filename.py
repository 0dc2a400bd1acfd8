"""Fields from file names."""

from __future__ import annotations

import pytest

from penstock.datasets.annotations.filename import FilenameFields
from tests.contracts.storage import check_storage
from tests.datasets.annotations.annotated import fields_of, open_annotated, write_images

MARKET = {
    "train": {
        "-1_c1s1_000451_03.jpg": (-1, 1, ""),
        "0007_c3s2_000001_00.jpg": (7, 3, ""),
    },
    "val": {
        "gallery/0000_c2s1_1.jpg": (0, 2, "gallery"),
        "gallery/0009_c4s1_1.jpg": (9, 4, "gallery"),
        "query/0009_c1s1_000451_03.jpg": (9, 1, "query"),
    },
}


@pytest.fixture
def root(tmp_path):
    for part, fields in MARKET.items():
        write_images(tmp_path / part, list(fields))
    return tmp_path


@pytest.mark.parametrize("split", MARKET)
def test_names_of_market_1501(root, split):
    names = ("image", "identity", "camera", "role")
    wanted = [
        (key, dict(zip(names, (b"image " + key.encode(), *fields), strict=True)))
        for key, fields in MARKET[split].items()
    ]
    check_storage(lambda: open_annotated(root, FilenameFields(), split=split), wanted)
    index = open_annotated(root, FilenameFields(), split=split).index
    assert index.column("identity").tolist() == [fields["identity"] for _, fields in wanted]
    # The classes are the identities of the training part, without -1.
    assert index.field_classes["identity"] == ("7",)


def test_other_patterns_and_other_groups(root):
    pattern = r"(?P<who>\w+)_c(?P<seen_by>\ds\d)(_(?P<frame>000451))?"
    found = fields_of(open_annotated(root, FilenameFields(pattern)))[1]
    assert found == {"who": 7, "seen_by": "3s2", "frame": -1}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", r"dataset\.annotations\.pattern '\('"),
        (r"(\d+)", "groups need names"),
        (r"(?P<label>\d+)", "but not .*label"),
        (r"^(?P<identity>\d{4})_", r"is not found in 1 of 2 names, such as '-1_c1s1_0004"),
    ],
)
def test_invalid_patterns_are_refused(root, pattern, message):
    with pytest.raises(ValueError, match=message) as caught:
        open_annotated(root, FilenameFields(pattern))
    assert "\n" not in str(caught.value)
