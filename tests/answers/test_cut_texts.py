"""Tokens that `token_crop` cuts are counted: in the first lines, the summary, and the loader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose, register
from penstock.pipeline.training.job import train
from tests.console import penstock

LENGTHS = [3, 30, 12, 8, 9, 1, 20, 8, 40, 2]
MOST = 8
CUT = [length - MOST for length in LENGTHS if length > MOST]
VAL_LENGTHS = [100, 8]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for split, lengths in (("train", LENGTHS), ("val", VAL_LENGTHS)):
        rows = [[position % 9 for position in range(length)] for length in lengths]
        table = pa.table({"tokens": pa.array(rows, pa.list_(pa.int64()))})
        pq.write_table(table, folder / f"{split}.parquet", row_group_size=4)
    return folder


def config_of(data: Path, *more: str):
    return compose(
        [
            "task=tokens",
            f"dataset.storage.path={data}",
            f"augment.max_length={MOST}",
            "loader.batch_size=4",
            "loader.drop_last=false",
            *more,
        ]
    )


ENGINES = ["inline", "threads", "processes", "torch"]
SAMPLERS = {
    "packed": ["sampler.max_tokens=32", f"sampler.max_length={MOST}", "collate.row_length=16"],
    # The ranks fill the last batch with records that count once.
    "random": ["sampler=random", "collate=pad"],
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_counts_each_cut_once(data, engine):
    workers = [] if engine == "inline" else ["loader.num_workers=2"]
    config = config_of(data, f"loader={engine}", *SAMPLERS["random"], *workers)
    with build_loader(config) as loader:
        for _ in range(2):
            batches = list(loader)
    assert sum(int(batch["valid"].sum()) for batch in batches) == len(LENGTHS)
    assert loader.stats.cut_texts == 2 * len(CUT)
    assert loader.stats.cut_tokens == 2 * sum(CUT)
    assert not any("cut" in name for batch in batches for name in batch)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_ranks_together_count_each_cut_once(data, sampler):
    counts = []
    for rank in range(3):
        config = config_of(data, "loader=inline", *SAMPLERS[sampler])
        with build_loader(config, rank=rank, world_size=3) as loader:
            list(loader)
        counts.append((loader.stats.cut_texts, loader.stats.cut_tokens))
    assert tuple(map(sum, zip(*counts, strict=True))) == (len(CUT), sum(CUT))


@register("source", "answers_texts")
def answers_texts():
    for number, length in enumerate(LENGTHS):
        yield {"tokens": np.arange(length), "key": f"text-{number}"}


def test_a_stream_counts_its_cuts():
    config = compose(
        [
            "dataset=stream",
            "dataset/source=answers_texts",
            "dataset/decode=raw",
            "dataset.val_fraction=0",
            "augment=tokens",
            f"augment.max_length={MOST}",
            "collate=pad",
            "loader=inline",
            "loader.batch_size=4",
            "loader.drop_last=false",
        ]
    )
    with build_loader(config) as loader:
        list(loader)
    assert (loader.stats.cut_texts, loader.stats.cut_tokens) == (len(CUT), sum(CUT))


@pytest.mark.parametrize("most", [MOST, 512])
def test_a_run_counts_the_tokens_it_cuts(data, tmp_path, most):
    config = config_of(
        data,
        "loader=inline",
        f"augment.max_length={most}",
        "sampler.max_tokens=512",
        f"sampler.max_length={most}",
        "collate.row_length=512",
        "model.width=8",
        "model.depth=1",
        f"outputs={tmp_path}",
        "trainer.max_epochs=2",
        "trainer.device=cpu",
    )
    results = train(config)
    folder = Path(results["run_dir"])
    summary = json.loads((folder / "summary.json").read_text())
    texts, tokens = (2 * (len(CUT) + 1), 2 * (sum(CUT) + 92)) if most == MOST else (0, 0)
    assert (summary["cut_texts"], summary["cut_tokens"]) == (texts, tokens)
    lines = [line.split() for line in (folder / "log.txt").read_text().splitlines()]
    said = [line for line in lines if line[4:5] == ["cut"]]
    if most == 512:
        assert not said
        return
    first, last = said
    assert lines.index(first) < 10 < lines.index(last)
    for number in (len(CUT), sum(CUT), sum(LENGTHS), 92, 108):
        assert f"{number}" in first
    assert {f"{texts}", f"{tokens}"} <= set(last)


def test_evaluate_counts_its_cuts_and_preview_draws_them(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        f"dataset.storage.path={data}",
        *SAMPLERS["packed"],
        f"augment.max_length={MOST}",
        "loader=inline",
    ]
    assert penstock("preview", "task=tokens", *words) == 0
    small = ["model.width=8", "model.depth=1", "trainer.max_epochs=1", "trainer.device=cpu"]
    run = train(compose(["task=tokens", *words, *small, f"outputs={tmp_path}/outputs"]))["run_dir"]
    assert penstock("evaluate", f"evaluate.checkpoint={run}", "evaluate.output=found.json") == 0
    found = json.loads(Path("found.json").read_text())
    assert (found["cut_texts"], found["cut_tokens"]) == (1, 92)
