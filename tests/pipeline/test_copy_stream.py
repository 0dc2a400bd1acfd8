"""What of a batch is copied to a device."""

from typing import NamedTuple

import torch

from penstock.pipeline.device import map_tensors


class Pair(NamedTuple):
    number: int
    tensor: torch.Tensor


def test_a_named_tuple_stays_what_it_is():
    pair = Pair(1, torch.ones(2))
    mapped = map_tensors({"pair": pair, "plain": (1, torch.ones(2))}, torch.zeros_like)
    assert mapped["pair"] is pair
    assert type(mapped["plain"]) is tuple and mapped["plain"][1].sum() == 0
