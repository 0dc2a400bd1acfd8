"""Sequences from end to end: stored, sampled, cut, padded, counted and learned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.datasets.demo.sequences import MOTIFS, SEQUENCES, draw_sequence
from penstock.pipeline.build import build_loader
from penstock.pipeline.learning.networks import SequenceCnn
from penstock.pipeline.training.job import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sequences")
    SEQUENCES.path("parquet", path)
    return path


def composed(folder: Path, *more: str):
    return compose(["task=sequence", f"data_dir={folder}", "loader.batch_size=32", *more])


def test_a_sequence_says_its_class():
    for number in range(200):
        tokens = draw_sequence(0, number)
        assert tokens.dtype == np.int16 and 8 <= len(tokens) <= 128
        assert tokens.min() >= 1 and tokens.max() < 32
        windows = {tuple(tokens[i : i + 4].tolist()) for i in range(len(tokens) - 3)}
        assert [m for m in MOTIFS.values() if m in windows] == [[*MOTIFS.values()][number % 4]]
    assert np.array_equal(draw_sequence(1, 7), draw_sequence(1, 7))
    assert not np.array_equal(draw_sequence(0, 7)[:8], draw_sequence(1, 7)[:8])


def test_batches_hold_the_drawn_sequences(folder):
    config = composed(folder, "augment.train.crop=null", "augment.train.mask=null",
                      "loader=inline")  # fmt: skip
    with build_loader(config) as loader:
        for number, batch in zip(range(5), loader, strict=False):
            for row, index in enumerate(batch["index"].tolist()):
                length = int(batch["tokens_lengths"][row])
                drawn = draw_sequence(0, index)
                assert batch["tokens"][row, :length].tolist() == drawn.tolist()
                assert not batch["tokens"][row, length:].any()
                assert batch["tokens_mask"][row].sum() == length == len(drawn)
                assert batch["label"][row] == index % 4, number


def test_padding_is_counted(folder):
    def stats(*more):
        with build_loader(composed(folder, "loader=inline", "augment.train.mask=null", *more)) as a:
            for _ in a:
                pass
            return a.stats

    bucketed, random = stats(), stats("sampler=random")
    assert bucketed.padding_overhead < 0.06 < 0.4 < random.padding_overhead
    assert f"padding: {bucketed.padding_overhead:.1%} of the elements" in str(bucketed)


@pytest.mark.slow
def test_it_is_learned_and_reported(folder, tmp_path):
    config = composed(folder, "loader=inline", f"outputs={tmp_path}",
                      "trainer.progress=off", "trainer.max_steps=70")  # fmt: skip
    results = train(config)
    assert results["val/accuracy"] > 0.9
    figures = json.loads((Path(results["run_dir"]) / "summary.json").read_text())["times"]["train"]
    assert figures["padding"] < 0.06


@pytest.mark.parametrize("features", [None, 5])
def test_outputs_do_not_depend_on_padding(features):
    torch.manual_seed(0)
    model = SequenceCnn(num_classes=3, num_tokens=9, num_features=features, width=8)
    shape = (2, 6) if features is None else (2, 6, features)
    values = torch.randint(1, 9, shape)
    if features is not None:
        values = values.float()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    first = model({"tokens": values, "tokens_mask": mask})
    filled = torch.nn.functional.pad(values, (0, 3) if features is None else (0, 0, 0, 3), value=7)
    wide = torch.nn.functional.pad(mask, (0, 3))
    filled[1, 4:] = 8
    assert torch.allclose(model({"tokens": filled, "tokens_mask": wide}), first, atol=1e-6)
    empty = {"tokens": values[:, :0], "tokens_mask": mask[:, :0]}
    assert model(empty).shape == (2, 3)


def test_a_token_outside_of_the_vocabulary_is_named():
    model = SequenceCnn(num_classes=3, num_tokens=9)
    batch = {"tokens": torch.tensor([[3, 9]]), "tokens_mask": torch.ones(1, 2, dtype=torch.bool)}
    with pytest.raises(ValueError, match="tokens from 3 to 9, expected 0 to 8"):
        model(batch)
    with pytest.raises(ValueError, match="use collate=pad"):
        model({"tokens": batch["tokens"]})
