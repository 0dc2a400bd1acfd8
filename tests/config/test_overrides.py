"""Quoting of what Hydra's grammar refuses, and that nothing else is changed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.config.composition import HydraException, composer_for
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.overrides import naming_files, parse, quote


@pytest.fixture(scope="module")
def composer():
    return composer_for([])


@pytest.mark.parametrize(
    "path",
    ["фото/я.jpg", "a(1).jpg", "shard-{000..099}.tar", "{000..099}", "img_{:07d}.jpg",
     "it's (1).png", r"(?P<label>n\d+)_\d+", "a b (c).jpg", "写真/é.png",
     'say "x" (1)', "a,(b", "x[1.jpg"],
)  # fmt: skip
def test_what_the_grammar_refuses_arrives_as_it_was_typed(composer, path: str):
    text = f"dataset.storage.path={path}"
    with pytest.raises(HydraException):
        composer.parse(text)
    [change] = parse([text], composer).changes
    assert change.override.value() == path


def test_elements_of_a_list_are_quoted_one_by_one(composer):
    [change] = parse(["imports=[фото/я.py,my_parts,a(1).py]"], composer).changes
    assert change.override.value() == ["фото/я.py", "my_parts", "a(1).py"]


def test_values_of_a_mapping_are_quoted_one_by_one(composer):
    [change] = parse(["x.fields={image: jpg;png, label: cls,n: [a(1)]}"], composer).changes
    assert change.override.value() == {"image": "jpg;png", "label": "cls", "n": ["a(1)"]}


def test_values_of_a_sweep_are_quoted_one_by_one(composer):
    text = quote("dataset.storage.path=фото/я,b,a(1)", composer, sweep=True)
    override = composer.parse(text)
    assert [value.strip("'") for value in override.sweep_string_iterator()] == [
        "фото/я",
        "b",
        "a(1)",
    ]


@pytest.mark.parametrize(
    "text", ["seed=3", "a.b=[1,2]", "x='q(1)'", "~a.b", "++k={a: 1}", "data_dir="]
)
def test_what_the_grammar_takes_is_left_alone(composer, text: str):
    assert quote(text, composer) == text


_plain = st.text(st.characters(codec="utf-8", exclude_characters="\\,'\"[]{}\n\r\t$", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1)  # fmt: skip  # noqa: E501


@settings(max_examples=60)
@given(_plain)
def test_any_path_is_one_value(path: str):
    composer = _composer()
    parsed = parse([f"data_dir=p/{path}(я"], composer)
    assert not parsed.problems
    [change] = parsed.changes
    assert change.override.value() == f"p/{path}(я"


_scalars = st.one_of(st.integers(-(10**9), 10**9), st.booleans(), st.none(), st.floats(-1e3, 1e3))
_values = st.recursive(
    _scalars, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(
        st.from_regex("[a-z_]{1,6}", fullmatch=True).filter(lambda k: k not in (
            "true", "false", "null", "nan", "inf")), inner, max_size=3)), max_leaves=6,
)  # fmt: skip


@settings(max_examples=60)
@given(_values)
def test_what_is_typed_is_what_hydra_is_given(value: object):
    """A change survives the way to a launcher: parsed, written out as `++`, parsed again."""
    from penstock.pipeline.config.overrides import as_hydra
    from penstock.pipeline.config.values import shown

    composer = _composer()
    [change] = parse([f"a.b={shown(value)}"], composer).changes
    assert change.override.value() == value
    assert composer.parse(as_hydra(change)).value() == value


_kept: list = []


def _composer():
    if not _kept:
        _kept.append(composer_for([]))
    return _kept[0]


def test_a_pattern_names_the_files_it_fits(tmp_path):
    for name in ("b.jpg", "a.jpg", "deep/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    named = naming_files([f"{tmp_path}/**/*.jpg", "x=1"])
    paths = ",".join(f"'{tmp_path / name}'" for name in ("a.jpg", "b.jpg", "deep/c.jpg"))
    assert named == ["dataset=image_files", f"dataset.storage.paths=[{paths}]", "x=1"]
    with pytest.raises(ConfigError, match="no such file or folder"):
        naming_files([f"{tmp_path}/*.png"])
