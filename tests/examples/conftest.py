"""What tests of examples share: an example is registered for one test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock.core import registry
from penstock.pipeline.config.components import load_imports, register_components

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def registered_anew(monkeypatch):
    """What examples register, and their modules, are forgotten when the test ends."""
    register_components()
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}
    yield
    stems = {file.stem for file in EXAMPLES.rglob("*.py")}
    for name in ({*sys.modules} - before) & stems:
        del sys.modules[name]


@pytest.fixture
def imported(registered_anew):
    """Imports an example as ``imports=[...]`` does; gives its module."""

    def load(name: str):
        load_imports([str(EXAMPLES / name)])
        return sys.modules[Path(name).stem]

    return load
