"""Nested samples and graphs: alone, by ranks, on the device, and from a table."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from penstock.pipeline.collates.nested import NestedCollate
from tests.contracts.collate import check_collate, in_tensors
from tests.contracts.equality import assert_same
from tests.nested_samples import fields_of

NestedCollate = in_tensors(NestedCollate)


def samples(*indices: int) -> list[dict]:
    return [
        {**copy.deepcopy(fields_of(i)), "index": i, "key": f"g{i}", "position": i + 5}
        for i in indices
    ]


RULES_AS_DICT = {
    "graph": {"edges": "edges", "x": "nodes", "weight": "concat"},
    "points": "list",
    "deep.er.walk": "pad",
}


def collate(**more) -> NestedCollate:
    return NestedCollate(rules=RULES_AS_DICT, **more)


def check_graphs(graph: dict, indices: list[int]) -> None:
    """Cut the one graph apart again, and compare with what the samples held."""
    starts = torch.cumsum(graph["num_nodes"], 0) - graph["num_nodes"]
    row_of_edge = graph["graph"][graph["edges"][0]] if len(graph["graph"]) else torch.zeros(0)
    for row, index in enumerate(indices):
        drawn = fields_of(index)["graph"]
        inside = graph["graph"] == row
        assert torch.equal(graph["x"][inside], torch.from_numpy(drawn["x"]))
        own = row_of_edge == row
        assert (graph["edges"][:, own] - starts[row]).tolist() == drawn["edges"].tolist()
        assert graph["weight"][own].tolist() == drawn["weight"].tolist()
    assert graph["edges"].dtype == graph["graph"].dtype == graph["num_nodes"].dtype == torch.int64
    assert graph["edges"].shape[0] == 2
    assert graph["name"] == [f"graph {i}" for i in indices]


@pytest.mark.parametrize("indices", [(1, 2, 3), (7, 11, 22, 4), (0,), (0, 11), (5,)])
def test_graphs_become_one(indices):
    batch = collate(value=-1)(samples(*indices))
    check_graphs(batch["graph"], list(indices))
    assert batch["image"].shape == (len(indices), 24, 20, 3)
    assert batch["deep"]["flag"].tolist() == [i % 2 == 0 for i in indices]
    inner, lengths = batch["deep"]["er"], [i % 5 for i in indices]
    assert inner["size"].tolist() == list(indices)
    assert inner["walk_lengths"].tolist() == lengths
    assert inner["walk"].tolist() == [
        [*range(length), *[-1] * (max(lengths) - length)] for length in lengths
    ]
    for points, index in zip(batch["points"], indices, strict=True):
        drawn = fields_of(index)["points"]
        assert [p.tolist() for p in points] == [p.tolist() for p in drawn]
    assert collate().overhead(batch) == (sum(lengths), max(lengths) * len(lengths))


def test_contract_and_nothing_in_a_batch_is_shared_with_its_samples():
    check_collate(collate(), samples(3, 4, 7, 11))
    made = samples(3, 4)
    batch = collate()(made)
    for sample in made:
        for array in (*sample["graph"].values(), *sample["points"], sample["deep"]["er"]["walk"]):
            if isinstance(array, np.ndarray):
                array.fill(0)
    assert_same(batch, collate()(samples(3, 4)))


def test_lists_of_numbers_and_tensors_do_as_well():
    listed = samples(3, 4, 7, 11)
    for number, sample in enumerate(listed):
        graph = sample["graph"]
        kind = torch.from_numpy if number % 2 else np.ndarray.tolist
        graph["edges"] = kind(graph["edges"])
    assert_same(collate()(listed), collate()(samples(3, 4, 7, 11)), "lists")
    empty = [{"x": [[1.0, 2.0]]}, {"x": []}]
    assert NestedCollate(rules={"x": "concat"})(empty)["x"].tolist() == [[1.0, 2.0]]
    assert NestedCollate(rules={"x": "pad"})(empty)["x_lengths"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("graph.edges", np.array([[0], [9]]), r"'g4': 'graph\.edges' is int64 .* from 0 to"),
        ("graph.edges", np.array([[-1], [0]]), "from 0 to"),
        ("graph.edges", np.zeros((3, 2), int), r"'g4'.*int64 \[3, 2\]"),
        ("graph.edges", np.zeros((2, 2)), r"float64 \[2, 2\]"),
        ("graph.x", np.zeros((2, 5), np.float32), r"'graph\.x' is \[5, 4\] .*first axis"),
        ("graph.more", 99, r"'graph\.more' is in sample 'g4' but not in 'g3'"),
        ("graph", 3, r"'graph' is in sample 'g4' but not in 'g3'"),
        ("deep.er.walk", "x", r"'deep\.er\.walk' .*'g4'.* str"),
        ("image", np.zeros((2, 2, 3), np.uint8), r"rules=\{image: pad\}"),
        ("deep.er.walk", np.zeros((2, 2)), r"only the first 1 axes may differ"),
    ],
)
def test_what_does_not_fit_is_named(path, value, message):
    made = samples(3, 4)
    *outer, name = path.split(".")
    sample = made[1]
    for key in outer:
        sample = sample[key]
    sample[name] = value
    with pytest.raises(ValueError, match=message):
        collate()(made)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"graph": {"edges": "edges"}}, r"collate\.rules=\{graph\.x: nodes\}"),
        ({"graf.edges": "edges"}, r"no value at 'graf\.edges'"),
        ({"graph": "list"}, "no value at 'graph'"),
        ({"deep.er.walk": "pad", "deep.er.walk_mask": "stack"}, "adds 'deep.er.walk_mask', which"),
        ({"points": "ragged"}, "rule 'ragged' for 'points'; expected stack, list, pad"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        made = samples(3)
        made[0]["deep"]["er"]["walk_mask"] = np.ones(3)
        NestedCollate(rules=rules)(made)
