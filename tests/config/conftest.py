"""Composition is what is tested here: each time anew."""

import pytest

from penstock.pipeline.config.composition import Composer


@pytest.fixture(autouse=True)
def composed_anew(composed_once, monkeypatch):
    monkeypatch.setattr(Composer, "compose", composed_once)
