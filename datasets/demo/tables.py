"""Generate tables whose labels and prices follow from their other columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.demo.folder import DemoSet, random

COUNTS = {"train": 3000, "val": 600}
CLASSES = ("away", "home", "shop")
STORAGES = ("csv", "parquet")
_SEED = 0x7AB1E
_CITIES = ("Berlin", "Lagos", "Lima", "Oslo", "Pune", "Quito", "Riga", "Seoul")


def draw_table(split: str) -> dict[str, Sequence[Any]]:
    """Return the columns of a split, with None for missing values; depends only on the split."""
    count = COUNTS[split]
    rng = random(_SEED, sorted(COUNTS).index(split))
    shares = 1 / np.arange(1, len(_CITIES) + 1) ** 1.3
    city = rng.choice(len(_CITIES), count, p=shares / shares.sum())
    grade = rng.choice(4, count, p=[0.55, 0.3, 0.1, 0.05])
    age = rng.uniform(18, 80, count)
    area = rng.lognormal(4.2, 0.5, count)
    distance = rng.exponential(8.0, count)
    rooms = 1 + rng.poisson(area / 30)
    worth = np.array([1.6, 0.7, 0.9, 2.0, 0.6, 0.8, 1.1, 1.9])[city]
    score = np.sin(age / 9) + 0.25 * (distance - 8) * np.where(city % 2, 1, -1) + 0.6 * (grade - 1)
    score += rng.normal(0, 0.1, count)
    label = np.digitize(score, [-0.8, 0.8])
    price = area * worth * (1 + 0.25 * grade) * (1.3 - age / 200) * rng.normal(1, 0.03, count)
    names: list[Any] = [_CITIES[n] for n in city]
    if split == "val":
        names[:: count // 6] = ["Atlantis"] * len(names[:: count // 6])
    return {
        "age": _with_gaps(rng, age.round(1), 0.05),
        "area": _with_gaps(rng, area.round(2), 0.03),
        "distance": distance.round(3).tolist(),
        "rooms": rooms.tolist(),
        "city": names,
        "grade": _with_gaps(rng, np.array(list("abcd"))[grade], 0.04),
        "label": [CLASSES[n] for n in label],
        "price": price.round(2).tolist(),
    }


def _with_gaps(rng: np.random.Generator, values: NDArray[Any], share: float) -> list[Any]:
    gone = rng.random(len(values)) < share
    return [None if g else value for value, g in zip(values.tolist(), gone, strict=True)]


def _generate(other: str, root: Path) -> None:
    """Write every split as CSV and as Parquet, without the column `other`."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    for split in COUNTS:
        table = pa.table({n: list(v) for n, v in draw_table(split).items() if n != other})
        for storage in STORAGES:
            (root / storage).mkdir(exist_ok=True)
        csv.write_csv(table, root / f"csv/{split}.csv")
        parquet.write_table(table, root / f"parquet/{split}.parquet", row_group_size=1000)


TABLES = {
    name: DemoSet(f"{name}/v2", STORAGES, partial(_generate, other))
    for name, other in (("demo_table", "price"), ("demo_prices", "label"))
}
