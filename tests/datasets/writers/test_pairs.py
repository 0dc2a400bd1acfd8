"""From every form into every other one and back: the same records."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core import registry
from penstock.datasets.writing import write_storage
from penstock.pipeline.config.components import register_components
from tests.contracts.records import KINDS
from tests.datasets.writers.writer_contract import (
    assert_equal_records,
    contents,
    holdable,
    open_written,
    records_of,
)
from tests.shares import in_turn

register_components()
WRITERS = {
    component.name: component.target
    for component in registry.components("writer")
    if component.target.__module__.startswith("penstock.datasets.")
}
# Pixels of one size, as forms without files may need them.
ALIKE = frozenset(KINDS) - {"files", "pixels", "shapes", "missing", "no image", "keys"}


@pytest.mark.parametrize(("one", "other"), in_turn([*WRITERS], [*WRITERS], every=6))
@pytest.mark.parametrize("kinds", [frozenset(KINDS), ALIKE], ids=["any", "alike"])
def test_there_and_back(one: str, other: str, kinds: frozenset[str], tmp_path: Any):
    a, b = WRITERS[one](), WRITERS[other]()
    kinds = kinds & holdable(a) & holdable(b)
    if not kinds & {"files", "pixels", "arrays", "bytes", "numbers", "values"}:
        pytest.skip("there is no field but the label that both hold")
    source = records_of(kinds)
    write_storage(a, tmp_path / "1", source)
    first = open_written(a, tmp_path / "1")
    write_storage(b, tmp_path / "2", first)
    second = open_written(b, tmp_path / "2")
    assert_equal_records(second, source)
    write_storage(a, tmp_path / "3", second)
    third = open_written(a, tmp_path / "3")
    assert_equal_records(third, source)
    if one == other:
        assert contents(tmp_path / "1") == contents(tmp_path / "3")
