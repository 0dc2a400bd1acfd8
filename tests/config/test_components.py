"""Finding components by module, by file, by preset and by entry point."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys

import pytest

from penstock import compose
from penstock.core import registry
from penstock.pipeline.config.components import load_entry_points, load_imports, register_components
from penstock.pipeline.config.errors import ConfigError

PART = """
from penstock import register
@register("sampler", "{name}")
class Sampler:
    '''A sampler of a test.'''
    def __init__(self, n: int, *, width: int = 3): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    register_components()  # once in a process: what a test takes back must not be of these
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "named", "name"), [("found_parts.py", "./found_parts.py", "found_parts"),
                                ("found/parts.py", "found.parts", "found__parts")]
)  # fmt: skip
def test_a_file_or_module_is_imported_so_that_it_pickles(file, named, name, folder):
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(PART.format(name=name))
    register_components([named])
    target = registry.find(f"sampler/{name}").target
    assert target.__module__ == name.replace("__", ".")
    assert pickle.loads(pickle.dumps(target)) is target


def test_an_imported_component_is_chosen_and_saved_with_its_import(folder):
    (folder / "chosen_parts.py").write_text(PART.format(name="chosen"))
    config = compose(["imports=[chosen_parts.py]", "sampler=chosen", "sampler.width=5"])
    assert config["sampler"] == {"_target_": "sampler/chosen", "width": 5}
    assert config["imports"] == ["chosen_parts.py"]
    (folder / "preset_parts.py").write_text(PART.format(name="by_preset"))
    (folder / "conf" / "experiment").mkdir(parents=True)
    (folder / "conf" / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /sampler: by_preset\n"
        "imports: [preset_parts.py]\n"
    )
    assert compose(["experiment=mine"])["sampler"]["_target_"] == "sampler/by_preset"


def test_an_entry_point_is_loaded(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    (folder / "found_plugin.py").write_text(PART.format(name="by_entry_point"))
    point = importlib.metadata.EntryPoint("x", "found_plugin", "penstock.components")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    load_entry_points.__wrapped__()
    assert registry.find("sampler/by_entry_point")


@pytest.mark.parametrize("name", ["json", "pipeline", "numpy", "this", "b/twice", "odd-name"])
def test_a_file_that_cannot_be_told_from_another_module_is_refused(folder, name):
    for each in ("a/twice", name):
        (folder / f"{each}.py").parent.mkdir(exist_ok=True)
        (folder / f"{each}.py").write_text("raise SystemExit('imported')" if each == name else "")
    load_imports(["a/twice.py", "a/twice.py"])
    with pytest.raises(ConfigError) as caught:
        load_imports([f"{name}.py" if "/" in name else f"./{name}.py"])
    assert [problem.key for problem in caught.value.problems] == ["imports"]
    del sys.modules["twice"]


def test_a_failing_import_raises_what_it_raises(folder):
    (folder / "failing_parts.py").write_text("import nothing_of_this_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        load_imports(["failing_parts.py"])
