"""The next token: packed sequences are told apart, and give what padded ones give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import build_loader, compose
from penstock.pipeline.collates.fields import PackedCollate, PaddedCollate
from penstock.pipeline.learning.building import build_model, build_task
from penstock.pipeline.learning.networks import TokenModel
from penstock.pipeline.tasks.tokens import NextToken
from tests.contracts.collate import in_tensors

PackedCollate = in_tensors(PackedCollate)
PaddedCollate = in_tensors(PaddedCollate)

LENGTHS = (5, 3, 8, 1, 4, 0)


def samples(lengths=LENGTHS):
    rng = np.random.default_rng(0)
    return [
        {"tokens": rng.integers(1, 9, n).astype(np.int16), "label": n, "key": f"k{i}", "index": i,
         "position": i}
        for i, n in enumerate(lengths)
    ]  # fmt: skip


def model():
    torch.manual_seed(0)
    return TokenModel(num_tokens=9, field="tokens", max_length=8, width=8, depth=2)


def test_sequences_lie_in_rows_whole_with_their_boundaries():
    given = samples()
    batch = PackedCollate(row_length=8)(given)
    assert batch["tokens"].shape == (3, 8) and batch["tokens"].dtype == torch.int16
    for number, sample in enumerate(given):
        rows, columns = (batch["tokens_segments"] == number + 1).nonzero(as_tuple=True)
        assert len(rows.unique()) <= 1
        assert batch["tokens"][rows, columns].tolist() == sample["tokens"].tolist()
        assert batch["tokens_positions"][rows, columns].tolist() == [*range(len(columns))]
    assert batch["tokens_mask"].sum() == sum(LENGTHS)
    assert batch["tokens_lengths"].tolist() == batch["label"].tolist() == [*LENGTHS]
    assert batch["key"] == [f"k{i}" for i in range(6)]
    with pytest.raises(ValueError, match=r"'k2' has 8 tokens, and a row 7; set collate.row_length"):
        PackedCollate(row_length=7)(given)
    with pytest.raises(ValueError, match="no array 'ids'; fields: tokens"):
        PackedCollate(field="ids")(given)


def test_packing_changes_neither_loss_nor_gradient_nor_figures():
    task, found = NextToken(), []
    for collate in (PackedCollate(row_length=8), PackedCollate(row_length=32), PaddedCollate()):
        batch = {**collate(samples()), "valid": torch.tensor([True, True, True, True, False, True])}
        network = model()
        outputs = network(batch)
        loss = task.losses(outputs, batch)["cross_entropy"]
        loss.backward()
        task.update(metrics := task.metrics(), outputs, batch)
        found.append((loss, network.blocks[0].inward.weight.grad, metrics.compute()))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
    none = {**batch, "valid": torch.zeros(6, dtype=torch.bool)}
    network.zero_grad()
    loss = task.losses(network(none), none)["cross_entropy"]
    loss.backward()
    assert loss == 0 and not network.head.weight.grad.any()
    task.update(metrics := task.metrics(), network(none), none)
    assert not any(metric.update_called for metric in metrics.values())


def test_what_the_model_cannot_take_is_a_line():
    batch = PackedCollate(row_length=16)(samples((9,)))
    with pytest.raises(ValueError, match=r"sequences of 9 tokens, expected up to 8; set model.max"):
        model()(batch)
    batch["tokens"][0, 0] = 9
    with pytest.raises(ValueError, match=r"tokens from 0 to 9, expected 0 to 8; set model.num_tok"):
        model()(batch)
    with pytest.raises(ValueError, match="no tokens_segments and no tokens_mask"):
        model()({"tokens": batch["tokens"]})


def test_an_epoch_over_ranks_and_after_a_resume(tmp_path):
    typed = ["task=tokens", f"data_dir={tmp_path}", "loader=inline", "sampler.max_tokens=3000"]
    config = compose(typed)

    def keys_and_tokens(rank, world_size):
        with build_loader(config, split="train", rank=rank, world_size=world_size) as loader:
            return [(batch["key"], int(batch["tokens_mask"].sum())) for batch in loader]

    whole, shares = keys_and_tokens(0, 1), [keys_and_tokens(rank, 2) for rank in range(2)]
    assert max(tokens for _, tokens in whole) <= 3000
    assert len({key for keys, _ in whole for key in keys}) == sum(len(keys) for keys, _ in whole)
    for (keys, tokens), *parts in zip(whole, *shares, strict=True):
        assert [*keys] == [key for part, _ in parts for key in part]
        assert tokens == sum(count for _, count in parts)
    with build_loader(config, split="train") as loader:
        first = iter(loader)
        [next(first) for _ in range(3)]
        state = loader.state_dict()
        expected = next(first)
    with build_loader(config, split="train") as loader:
        loader.load_state_dict(state)
        resumed = next(iter(loader))
    assert torch.equal(resumed["tokens"], expected["tokens"])
    assert torch.equal(resumed["tokens_segments"], expected["tokens_segments"])
    task, network = build_task(config, 4, None), build_model(config, 4)
    assert task.losses(network(resumed), resumed)["cross_entropy"] > 0
