"""Finding components by module, by file and by entry point."""

from __future__ import annotations

import importlib.metadata
import pickle
import sys

import pytest

from penstock.core import registry
from penstock.pipeline.config.components import load_entry_points, load_imports, register_components
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError

pytestmark = pytest.mark.usefixtures("composed_anew")

PART = """
from penstock.core.registry import register
@register("sampler", "{name}")
class Sampler:
    '''A sampler of a test.'''
    def __init__(self, n: int, *, width: int = 3): ...
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    register_components()  # once in a process: what is taken back below must not be of these
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_is_imported_by_its_stem_so_that_it_pickles(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found_parts.py").write_text(PART.format(name="by_file"))
    config = compose(["imports=[./found_parts.py]", "sampler=by_file", "sampler.width=5"])
    assert config["sampler"] == {"_target_": "sampler/by_file", "width": 5}
    assert config["imports"] == ["./found_parts.py"]
    found = registry.find("sampler/by_file").target
    assert found.__module__ == "found_parts"
    assert pickle.loads(pickle.dumps(found)) is found


def test_a_module_is_imported_by_its_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "found_package").mkdir()
    (tmp_path / "found_package" / "parts.py").write_text(PART.format(name="by_module"))
    assert compose(["imports=[found_package.parts]", "sampler=by_module"])["sampler"]["width"] == 3


def test_an_entry_point_is_loaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "found_plugin.py").write_text(PART.format(name="by_entry_point"))
    point = importlib.metadata.EntryPoint("x", "found_plugin", "penstock.components")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point])
    load_entry_points.__wrapped__()
    assert registry.find("sampler/by_entry_point")


def test_a_preset_may_import_what_it_chooses(tmp_path):
    (tmp_path / "preset_parts.py").write_text(PART.format(name="by_preset"))
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        f"# @package _global_\ndefaults:\n  - override /sampler: by_preset\n"
        f"imports: ['{tmp_path}/preset_parts.py']\n"
    )
    config = compose(["experiment=mine"], config_dir=tmp_path)
    assert config["sampler"]["_target_"] == "sampler/by_preset"


@pytest.mark.parametrize("stem", ["json", "pipeline", "numpy", "this"])
def test_a_file_named_like_another_module_is_refused(tmp_path, stem: str):
    (tmp_path / f"{stem}.py").write_text("raise SystemExit('imported')")
    with pytest.raises(ConfigError, match=f"another module is named '{stem}'"):
        load_imports([str(tmp_path / f"{stem}.py")])


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice_parts.py").write_text("x = 1")
    load_imports([str(tmp_path / "a" / "twice_parts.py")])
    load_imports([str(tmp_path / "a" / "twice_parts.py")])
    with pytest.raises(ConfigError, match="another module is named 'twice_parts'"):
        load_imports([str(tmp_path / "b" / "twice_parts.py")])


def test_a_failing_import_raises_what_it_raises(tmp_path):
    (tmp_path / "failing_parts.py").write_text("import nothing_of_this_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        load_imports([str(tmp_path / "failing_parts.py")])
    (tmp_path / "odd-name.py").write_text("")
    with pytest.raises(ConfigError, match="rename it"):
        load_imports([str(tmp_path / "odd-name.py")])
