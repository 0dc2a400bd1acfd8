"""The site's pages of options have every option, each of its arguments, and a word about each."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs import groups, pages
from penstock.core import registry
from penstock.pipeline.commands import COMMANDS
from penstock.pipeline.config.compose import prepare
from penstock.pipeline.config.options import groups as option_groups
from penstock.pipeline.config.options import options_of
from penstock.pipeline.config.places import PARTS, PARTS_OF

ROOT = Path(__file__).resolve().parents[2]


for name in COMMANDS:
    import_module(f"penstock.pipeline.commands.{name}")  # before a test keeps the registry as it is


def ours():
    """Components that are not another test's."""
    return [c for c in registry.components() if c.target.__module__.startswith("penstock.")]


@pytest.fixture(scope="module")
def made():
    """Make the pages without what other tests have registered."""
    prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_components", {k: c for k, c in registry._components.items()
                                                if c in ours()})  # fmt: skip
        yield groups.pages()


def test_every_option_has_its_place_and_says_what_it_is(made):
    for group in option_groups():
        page = made[groups.page_name(group)]
        for option in options_of(group):
            assert f"\n## {option}\n" in page
            assert re.search(rf"^\| \[`{option}`\]\(#{option}\) \| \S.* \|$", page, re.MULTILINE)


def test_every_component_is_described_with_all_its_arguments(made):
    text = "\n".join(made.values())
    blocks = dict(re.findall(r"^\*\*`(.+?)`\*\*(.*?)(?=^\*\*`|^## |\Z)", text, re.M | re.S))
    for component in ours():
        if component.group == "engine":  # `loader=NAME` takes the loader's settings
            continue
        injected = registry.GROUPS[component.group].injected
        parts = {*PARTS, *PARTS_OF.get(component.target_name, ())}
        for parameter in registry.parameters(component.target, injected):
            line = rf"^\| `[\w.]+\.{parameter.name}=.*` \|.*\| \S.* \|$"
            # Settings that stand beside the arguments of others are listed with those.
            said = re.search(line, blocks.get(component.target_name, text), re.MULTILINE)
            assert said or parameter.name in parts, (component.target_name, parameter.name)


def test_extras_are_named_that_there_are(made):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {component.target_name: groups.extras_of(component) for component in ours()}
    assert {name for each in named.values() for name in each} <= extras.keys()
    assert named["storage/hdf5"][0] == "hdf5" and named["sampler/random"] == []
    assert named["source/kafka"] == ["kafka"] and named["logger/tensorboard"] == ["tensorboard"]
    assert "'.[kafka]'" in made["dataset_source.md"]


def test_pages_from_outside_of_docs_link_to_one_another():
    made = pages.from_outside()
    assert "](training.md)" in made["index.md"] and "](CONTRIBUTING.md)" in made["index.md"]
    page = SimpleNamespace(file=SimpleNamespace(generated_by=None))
    text = pages.on_page_markdown("[a](../examples/executor.py), [b](own.md#model)", page, {}, ())
    assert text == "[a](examples/executor.py.md), [b](own.md#model)"
    assert "```py\n" in made["examples/my_components.py.md"]
