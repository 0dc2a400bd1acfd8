"""The statistics of table columns are exact for any number and order of rows."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose

ROWS = 300_001


def _in_order(order):
    values = np.arange(ROWS) ** 2 / 7 + 0.5
    if order == "reversed":
        return values[::-1].copy()
    return np.random.default_rng(3).permutation(values) if order == "random" else values


@pytest.mark.parametrize("order", ["sorted", "reversed", "random"])
def test_median_and_quartiles(tmp_path, order):
    x = _in_order(order)
    filled = pa.array([None, *x[1:]], pa.float64())
    kinds = np.where(np.arange(ROWS) < ROWS // 2, "early", "late")  # the more frequent comes last
    table = pa.table({"x": x, "filled": filled, "kind": kinds})
    pq.write_table(table, tmp_path / "t.parquet")
    config = compose(
        [
            "dataset=parquet",
            f"dataset.storage.path={tmp_path / 't.parquet'}",
            "dataset/decode=table",
            "dataset.decode.scaling=robust",
            "dataset.decode.missing=median",
            "dataset.val_fraction=0",
            "augment=as_is",
            "sampler=sequential",
            "loader.batch_size=64",
            "loader.num_workers=0",
        ]
    )
    with build_loader(config, "train") as loader:
        batch = next(iter(loader))
    first, middle, third = np.quantile(x, [0.25, 0.5, 0.75])
    expected = ((x[:64] - middle) / (third - first)).astype(np.float32)
    np.testing.assert_allclose(batch["features"][:, 0], expected, rtol=1e-6, atol=1e-7)
    assert batch["features"][0, 1] == 0  # the null became the median
    assert set(batch["categories"].flatten().tolist()) == {2}  # the second most frequent kind
