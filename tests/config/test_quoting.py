"""Values that Hydra's grammar refuses arrive as they were typed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import compose
from penstock.pipeline.config.overrides import naming_files


@pytest.mark.parametrize(
    "path",
    ["s3://b/year=2024/x", "shard-{000..009}.tar", "{000..099}", "~/x", "a b (c).jpg", "a(1).jpg",
     "фото/я.jpg", "写真/é.png", "img_{:07d}.jpg", "it's (1).png", r"(?P<label>n\d+)_\d+",
     'say "x" (1)', "a,(b", "x[1.jpg", "a:b", "50%", "a@b", "x#1"],
)  # fmt: skip
def test_a_value_arrives_as_it_was_typed(path: str):
    assert compose([f"outputs={path}"])["outputs"] == path


def test_elements_and_values_are_quoted_one_by_one():
    typed = ["dataset=webdataset", "dataset.storage.path=[/no/s-{0..9}.tar,/no/я,/no/a(1)]",
             "dataset.storage.fields={image: jpg;png, label: cls}"]  # fmt: skip
    storage = compose(typed)["dataset"]["storage"]
    assert storage["path"] == ["/no/s-{0..9}.tar", "/no/я", "/no/a(1)"]
    assert storage["fields"] == {"image": "jpg;png", "label": "cls"}


_plain = st.text(
    st.characters(
        codec="utf-8", exclude_characters="\\,'\"[]{}$",
        exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp"),
    ), min_size=1,
)  # fmt: skip


@settings(max_examples=30)
@given(_plain)
def test_any_path_is_one_value(path: str):
    assert compose([f"data_dir=p/{path}(я"])["data_dir"] == f"p/{path}(я"


def test_a_pattern_names_the_files_it_fits(tmp_path):
    for name in ("b.jpg", "a.jpg", "deep/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    named = naming_files([f"{tmp_path}/**/*.jpg", "x=1"])
    paths = ",".join(f"'{tmp_path / name}'" for name in ("a.jpg", "b.jpg", "deep/c.jpg"))
    assert named == ["dataset=image_files", f"dataset.storage.paths=[{paths}]", "x=1"]
    with pytest.raises(ValueError, match="no such file or folder"):
        naming_files([f"{tmp_path}/*.png"])
