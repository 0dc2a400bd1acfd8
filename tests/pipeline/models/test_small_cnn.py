from __future__ import annotations

import pytest
import torch
from torch import nn

from penstock.pipeline.models.reference import module, small_cnn


@pytest.mark.parametrize("size", [(64, 64), (33, 90), (5, 5), (1, 1)])
def test_any_size_gives_logits(size):
    model = small_cnn(num_classes=5)
    assert model({"image": torch.rand(3, 3, *size)}).shape == (3, 5)


def test_bytes_are_taken_as_0_to_1():
    model = small_cnn(num_classes=2)
    image = torch.randint(0, 256, (2, 32, 40, 3), dtype=torch.uint8)
    expected = model({"image": image.permute(0, 3, 1, 2) / 255})
    torch.testing.assert_close(model({"image": image}), expected)


def test_rows_do_not_depend_on_their_batch():
    model = small_cnn(num_classes=4)
    image = torch.rand(6, 3, 32, 32)
    whole = model({"image": image})
    torch.testing.assert_close(whole[:2], model({"image": image[:2]}))


def test_without_classes_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"has no classes.*of streams dataset.source.classes"):
        small_cnn(num_classes=0)


def test_a_module_is_fed_one_field():
    model = module(module=nn.Linear(4, 2), input="features")
    batch = {"features": torch.rand(3, 4), "label": torch.zeros(3)}
    assert torch.equal(model(batch), model.module(batch["features"]))
    with pytest.raises(ValueError, match=r"the batch has label; set model.input to one of these"):
        model({"label": torch.zeros(3)})
    with pytest.raises(ValueError, match="expected a torch module"):
        module(module={"in_features": 3})


def test_files_in_the_place_of_pixels_are_told():
    with pytest.raises(ValueError, match=r"'image' is a file's 3 bytes.*dataset/decode=image$"):
        small_cnn(num_classes=2)({"image": [b"\xff\xd8\xff"]})
