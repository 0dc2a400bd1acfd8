"""What all tests share: a cache of their own, and the demo set, made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long one example takes is decided by who else is at work on the machine. Where CI is set,
# hypothesis draws the same examples every time: what fails there was changed, not drawn.
settings.register_profile("untimed", settings(), deadline=None)
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Indexes, orders and signatures of the tests stay out of the user's cache."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the generated demo set."""
    from penstock.datasets.demo.shapes import demo_path

    folder = tmp_path_factory.mktemp("data")
    demo_path("image_folder", folder)
    return folder
