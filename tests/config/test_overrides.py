"""Overrides arrive as typed, even where Hydra's grammar refuses them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import compose
from penstock.pipeline.commands.named_files import naming_files
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.overrides import quote, read_overrides

PLAIN = st.characters(codec="utf-8", exclude_characters="\\,'\"[]{}$",
                      exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp"))  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["s3://b/year=2024/x", "shard-{000..009}.tar", "{000..099}", "~/x", "a b (c).jpg", "a(1).jpg",
     "фото/я.jpg", "写真/é.png", "img_{:07d}.jpg", "it's (1).png", r"(?P<label>n\d+)_\d+",
     'say "x" (1)', "a,(b", "x[1.jpg", "a:b", "50%", "a@b", "x#1"],
)  # fmt: skip
def test_a_value_arrives_as_typed(path: str):
    assert compose([f"outputs={path}"])["outputs"] == path
    [typed], problems = read_overrides([quote(f"outputs={path}")])
    assert (typed.key, typed.value, problems) == ("outputs", path, [])


@pytest.mark.parametrize(
    "path", ["/no/s-{000..099}.tar", "/no/*.tar", "[/no/s-{0..9}.tar,/no/я,/no/a(1)]",
             "/no/{a,b}.tar"]
)  # fmt: skip
def test_elements_and_patterns_arrive_as_typed(path: str):
    typed = [f"dataset.storage.path={path}", "dataset.storage.fields={image: jpg;png, label: cls}"]
    storage = compose(["dataset=webdataset", *typed])["dataset"]["storage"]
    assert storage["path"] == (path[1:-1].split(",") if path[0] == "[" else path)
    assert storage["fields"] == {"image": "jpg;png", "label": "cls"}


@settings(max_examples=30)
@given(st.text(PLAIN, min_size=1))
def test_any_path_is_one_value(path: str):
    assert compose([f"data_dir=p/{path}(я"])["data_dir"] == f"p/{path}(я"


def test_a_pattern_names_the_files_that_match(tmp_path):
    for name in ("b.jpg", "a.jpg", "deep/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    named = naming_files([f"{tmp_path}/**/*.jpg", "x=1"])
    paths = ",".join(f"'{tmp_path / name}'" for name in ("a.jpg", "b.jpg", "deep/c.jpg"))
    assert named == ["dataset=image_files", f"dataset.storage.paths=[{paths}]", "x=1"]
    with pytest.raises(ConfigError) as caught:
        naming_files([f"{tmp_path}/*.png"])
    assert [problem.key for problem in caught.value.problems] == [f"{tmp_path}/*.png"]
