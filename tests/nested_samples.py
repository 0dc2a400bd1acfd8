"""A storage of nested samples, with graphs: for the tests of what passes them on."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.core.contracts import Storage
from penstock.core.registry import register
from penstock.core.sample import Record
from penstock.datasets.records.table import Table

RULES = "{graph: {edges: edges, x: nodes, weight: concat}, points: list, deep: {er: {walk: pad}}}"


def fields_of(index: int) -> dict[str, Any]:
    """The fields of a record; every seventh graph has no edges, every eleventh not even nodes."""
    rng = np.random.default_rng(index)
    nodes = 0 if index % 11 == 0 else int(rng.integers(1, 6))
    edges = 0 if index % 7 == 0 or not nodes else int(rng.integers(1, 9))
    return {
        "image": rng.integers(0, 256, (24, 20, 3), np.uint8),
        "label": index % 3,
        "graph": {
            "x": rng.random((nodes, 4), np.float32),
            "edges": rng.integers(0, max(nodes, 1), (2, edges)),
            "weight": rng.random(edges),
            "name": f"graph {index}",
        },
        "points": [rng.random((int(rng.integers(0, 4)), 2)) for _ in range(index % 3)],
        "deep": {"er": {"walk": np.arange(index % 5), "size": index}, "flag": index % 2 == 0},
    }


@register("storage", "nested_graphs")
class NestedGraphs(Storage):
    """Nested samples that are drawn."""

    def __init__(self, *, count: int = 41) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    @property
    def index(self) -> Table:
        labels = np.arange(self.count) % 3
        return Table([f"g{i}" for i in range(self.count)], {"label": labels}, list("abc"))

    def read(self, indices: np.ndarray) -> list[Record]:
        return [Record(i, f"g{i}", fields_of(i)) for i in indices.tolist()]

    def fingerprint(self) -> str:
        return f"nested {self.count}"


@register("transform", "nested_shuffle")
def nested_shuffle(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Changes what lies deep inside by the position's draws."""
    graph = sample["graph"]
    noise = rng.random(graph["x"].shape).astype(np.float32)
    return {**sample, "graph": {**graph, "x": graph["x"] + noise}}
