"""Data that several of these tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.loader.bundled import write_arrays


@pytest.fixture(scope="session")
def arrays_folder(tmp_path_factory) -> Path:
    """A folder of arrays, see `write_arrays`."""
    folder: Path = tmp_path_factory.mktemp("arrays")
    write_arrays(folder)
    return folder
