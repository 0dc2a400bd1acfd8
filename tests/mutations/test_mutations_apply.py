"""Each mutation still finds its line, so that a change of the code keeps the list alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_its_line_stands_once_in_its_file(mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
    assert all((ROOT / test).exists() for test in mutation.tests)
