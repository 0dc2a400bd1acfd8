"""Nested samples and graphs: alone, and through every stage and engine."""

from __future__ import annotations

import copy
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from penstock import compose
from penstock.pipeline.build import build_loader
from penstock.pipeline.collates.nested import NestedCollate
from penstock.pipeline.collates.pad import PaddedCollate
from penstock.pipeline.loader.contract import Delivery
from penstock.pipeline.loader.device.queue import DeviceQueue
from penstock.pipeline.loader.digest import batch_digest
from tests.contracts.collate import check_collate, in_tensors
from tests.contracts.equality import assert_same
from tests.nested_samples import RULES, fields_of

NestedCollate = in_tensors(NestedCollate)
PaddedCollate = in_tensors(PaddedCollate)


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
    inner = batch["deep"]["er"]
    assert inner["size"].tolist() == list(indices)
    assert inner["walk_lengths"].tolist() == [i % 5 for i in indices]
    assert inner["walk"].tolist() == [
        [*range(i % 5), *[-1] * (max(j % 5 for j in indices) - i % 5)] for i in indices
    ]
    assert inner["walk_mask"].sum() == sum(i % 5 for i in indices)
    for points, index in zip(batch["points"], indices, strict=True):
        drawn = fields_of(index)["points"]
        assert [p.tolist() for p in points] == [p.tolist() for p in drawn]
    lengths = [i % 5 for i in indices]
    assert collate().overhead(batch) == (sum(lengths), max(lengths) * len(lengths))


def test_contract():
    check_collate(collate(), samples(3, 4, 7, 11))


def test_nothing_in_a_batch_is_shared_with_its_samples():
    made = samples(3, 4)
    batch = collate()(made)
    before = batch_digest(batch)
    for sample in made:
        for array in (*sample["graph"].values(), *sample["points"], sample["deep"]["er"]["walk"]):
            if isinstance(array, np.ndarray):
                array.fill(0)
    assert batch_digest(batch) == before


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


def test_flat_samples_are_what_the_other_collates_make_of_them():
    flat = [
        {k: s[k] for k in ("image", "label", "index", "key", "position")} for s in samples(1, 2)
    ]
    for number, sample in enumerate(flat):
        sample["tokens"] = np.arange(number + 2)
    assert_same(NestedCollate(rules={"tokens": "pad"})(flat), PaddedCollate()(flat), "pad")


def bad(change) -> list[dict]:
    made = samples(3, 4)
    change(made[1])
    return made


def put(path, value):
    def change(sample):
        *outer, name = path.split(".")
        for key in outer:
            sample = sample[key]
        sample[name] = value

    return change


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (bad(put("graph.edges", np.array([[0], [9]]))), r"'g4': 'graph\.edges' has nodes 0 to 9"),
        (bad(put("graph.edges", np.array([[-1], [0]]))), "nodes -1 to 0"),
        (bad(put("graph.edges", np.zeros((3, 2), int))), r"'g4'.*int64 \[3, 2\]"),
        (bad(put("graph.edges", np.zeros((2, 2)))), r"float64 \[2, 2\]"),
        (bad(put("graph.x", np.zeros((2, 5), np.float32))), r"'graph\.x' is \[5, 4\] .*first axis"),
        (bad(put("graph.num_nodes", 99)), r"'graph\.num_nodes' is in sample 'g4' but not in 'g3'"),
        (bad(put("graph", 3)), "'graph' is a dict in some samples only"),
        (bad(put("deep.er.more", 3)), r"'deep\.er\.more' is in sample 'g4' but not in 'g3'"),
        (bad(put("deep.er.walk", "x")), r"'deep\.er\.walk' .*'pad'.*'g4'.* str"),
        (bad(put("image", np.zeros((2, 2, 3), np.uint8))), r"rules=\{image: pad\}"),
        (bad(put("deep.er.walk", np.zeros((2, 2)))), r"only the first 1 axes may differ"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(made, message):
    with pytest.raises(ValueError, match=message):
        collate()(made)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"graph": {"edges": "edges"}}, r"collate\.rules=\{graph\.x: nodes\}"),
        ({"graf.edges": "edges"}, r"nothing at 'graf\.edges'.*graph\.edges"),
        ({"graph": "list"}, "'graph' is a dict and has the rule 'list'"),
        ({"points": "ragged"}, "rule 'ragged' for 'points'; expected stack, list, pad"),
    ],
)
def test_rules_that_cannot_be_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        NestedCollate(rules=rules)(samples(3))


def test_a_field_that_is_in_the_way_is_named():
    made = samples(3)
    made[0]["graph"]["graph"] = 1
    with pytest.raises(ValueError, match=r"'graph\.graph' is in the samples"):
        collate()(made)


def test_the_number_of_nodes_may_be_given():
    made = [{"g": {"edges": np.array([[0], [1]]), "num_nodes": n}} for n in (2, 3, 5)]
    graph = NestedCollate(rules={"g.edges": "edges"})(made)["g"]
    assert graph["edges"].tolist() == [[0, 2, 5], [1, 3, 6]]
    assert graph["graph"].tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 2]
    assert graph["num_nodes"].tolist() == [2, 3, 5]


BASE = ["imports=[tests.nested_samples]", "dataset/storage=nested_graphs", "dataset/decode=raw",
        "dataset.val_fraction=0", "collate=nested", f"collate.rules={RULES}",
        "augment.image_size=16", "augment.train.deep={_target_: transform/nested_shuffle}",
        "loader.batch_size=6", "loader.drop_last=pad"]  # fmt: skip


def digests(*more: str) -> list[list[str]]:
    with build_loader(compose([*BASE, *more])) as loader:
        return [[batch_digest(batch) for batch in loader] for _ in range(2)]


@pytest.mark.slow
def test_every_engine_passes_nested_batches_on():
    expected = digests("loader=inline")
    assert len({digest for epoch in expected for digest in epoch}) == 14
    for way in (["loader=threads", "loader.num_workers=3"],
                ["loader=processes", "loader.num_workers=2"],
                ["loader=torch", "loader.num_workers=2"]):  # fmt: skip
        assert digests(*way) == expected, way


def test_the_last_batch_has_valid_rows_and_others():
    with build_loader(compose([*BASE, "loader=inline"])) as loader:
        *_, last = loader
    assert last["valid"].tolist() == [True] * 5 + [False]
    assert last["graph"]["num_nodes"].shape == (6,)


@pytest.mark.parametrize("sampler", ["weighted", "random"])
def test_ranks_together_have_the_graphs_of_the_epoch(sampler):
    config = compose([*BASE, "loader=inline", f"sampler={sampler}", "augment.train.deep=null"])
    parts = []
    for rank in range(3):
        with build_loader(config, rank=rank, world_size=3) as loader:
            parts.append(list(loader))
    with build_loader(config) as loader:
        for whole, *shares in zip(loader, *parts, strict=True):
            assert torch.equal(whole["position"], torch.cat([part["position"] for part in shares]))
            for batch in (whole, *shares):
                check_graphs(batch["graph"], batch["index"].tolist())


def test_resume_gives_the_same_batches():
    config = compose([*BASE, "loader=inline"])
    expected = digests("loader=inline")[0]
    with build_loader(config) as loader:
        iterator = iter(loader)
        next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    with build_loader(config) as loader:
        loader.load_state_dict(state)
        assert [batch_digest(batch) for batch in loader] == expected[1:]
    other = [override for override in BASE if not override.startswith("collate.rules")]
    changed = compose([*other, "collate.rules={points: list}", "loader=inline"])
    with build_loader(changed) as loader:
        with pytest.raises(ValueError, match=r"pixels\.collate\.rules"):
            loader.load_state_dict(state)


def test_nested_batches_come_to_the_device():
    config = compose([*BASE, "loader=inline"])
    with build_loader(config) as loader:
        expected = list(loader)
    with build_loader(config) as loader:
        for given, batch in zip(expected, DeviceQueue(loader, "cpu"), strict=True):
            assert batch.pop("num_valid") == int(given["valid"].sum())
            assert_same(batch, given, "copied")
        meta = next(iter(DeviceQueue(loader, "meta")))
    assert meta["graph"]["edges"].device.type == meta["deep"]["er"]["walk"].device.type == "meta"
    assert all(p.device.type == "meta" for points in meta["points"] for p in points)


def test_every_tensor_is_page_locked(monkeypatch):
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batch = collate()(samples(1, 2, 3))
    Delivery(0, batch).pin_memory()
    assert len(pinned) == 14 + sum(map(len, batch["points"]))


def test_structs_of_a_table_are_nested_samples(tmp_path):
    rows = []
    for index in range(20):
        drawn = fields_of(index)
        graph = {k: v.tolist() for k, v in drawn["graph"].items() if k != "name"}
        rows.append({"graph": graph, "label": drawn["label"]})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    rules = "{graph: {edges: edges, x: nodes, weight: concat}}"
    config = compose(["dataset=parquet", "dataset/decode=raw", f"dataset.storage.path={tmp_path}",
                      "dataset.val_fraction=0", "collate=nested", "augment=sequence",
                      "augment.train=null", "loader=inline", "loader.batch_size=5",
                      f"collate.rules={rules}"])  # fmt: skip
    with build_loader(config) as loader:
        for batch in loader:
            graph = batch["graph"]
            graph["x"] = graph["x"].float()
            graph["name"] = [f"graph {i}" for i in batch["index"].tolist()]
            check_graphs(graph, batch["index"].tolist())
