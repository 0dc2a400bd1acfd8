"""Keys that are formatted on first use, and then equal a list."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from penstock.core.sample import Keys


@pytest.mark.parametrize("pattern", ["{}", "row{:05}", "img_{:07d}.jpg", None])
def test_keys_read_as_a_list(pattern):
    numbers = [7, 0, 123456, 7]
    expected = [(pattern or "{}.png").format(n) for n in numbers]
    keys = Keys(np.array(numbers), pattern) if pattern else Keys(list(expected))
    assert list(keys) == expected == keys and keys == Keys(expected) and len(keys) == 4
    assert keys != expected[:3] and keys != 7 and keys != [*expected[:3], "else"]
    assert [keys[at] for at in range(-4, 4)] == expected * 2
    assert keys[np.int64(2)] == keys[torch.tensor(2)] == expected[2]
    assert keys[1:] == expected[1:] and list(keys[::-2]) == expected[::-2]
    assert expected[2] in keys and "else" not in keys and not keys[:0]
    assert repr(keys) == repr(expected) and ",".join(keys) == ",".join(expected)
    for again in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys)):
        assert type(again) is Keys and again == expected
    for error, use in ((IndexError, lambda: keys[4]), (TypeError, lambda: hash(keys))):
        with pytest.raises(error):
            use()
    assert len(pickle.dumps(Keys(np.arange(100_000), "{}")[10:20])) < 1000
