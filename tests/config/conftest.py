"""What tests of composition need: that it is done."""

import pytest

from penstock.pipeline.config.composition import Composer


@pytest.fixture
def composed_anew(composed_once, monkeypatch):
    """Compose each time, as a program does."""
    monkeypatch.setattr(Composer, "compose", composed_once)
