"""The benchmarks' own modules are imported by their plain names, as the scripts do it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight generated JPEG files."""
    from tests.photographs import photograph

    folder = tmp_path_factory.mktemp("photographs")
    for number in range(8):
        (folder / f"{number}.jpg").write_bytes(photograph(96 + number, 128))
    return folder
