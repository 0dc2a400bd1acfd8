"""Some batches of validation are a sample of all of it, not the first class."""

from __future__ import annotations

import pytest

from penstock import build_loader, compose


@pytest.mark.parametrize(("limit", "rows"), [(1, 16), (3, 48), (1000, 600)])
def test_limited_batches_are_spread_over_all_records(data_dir, limit, rows):
    config = compose([f"data_dir={data_dir}", "loader=inline", "loader.batch_size=16"])
    with build_loader(config, "val", limit=limit) as loader:
        labels = [label for batch in loader for label in batch["label"][batch["valid"]].tolist()]
    assert len(labels) == rows
    counts = [labels.count(label) for label in range(6)]
    assert max(counts) - min(counts) <= 1
