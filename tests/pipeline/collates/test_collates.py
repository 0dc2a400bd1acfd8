from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock import compose
from penstock.core.sample import Sample
from penstock.pipeline.collates.list import ListCollate
from penstock.pipeline.collates.pad import PaddedCollate
from penstock.pipeline.collates.stack import stack
from penstock.pipeline.config.errors import ConfigError
from tests.contracts.collate import InTensors, check_collate, in_tensors

ListCollate = in_tensors(ListCollate)
PaddedCollate = in_tensors(PaddedCollate)
stack = InTensors(stack)


def samples(count: int = 5, *, ragged: bool = False) -> list[Sample]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        sample: Sample = {
            "image": rng.integers(0, 256, (8, 6, 3), np.uint8),
            "label": i % 3,
            "weight": i / 2,
            "flag": i % 2 == 0,
            "note": {"any": "thing"},
            "index": 100 + i,
            "key": f"{i}.jpg",
            "position": 7 - i,
        }
        if ragged:
            sample["tokens"] = rng.integers(1, 99, i + 1)
            sample["frames"] = rng.random((2 * i + 1, 4), np.float32)
        made.append(sample)
    return made


def test_stack_keeps_the_contract_and_every_pixel():
    batch = check_collate(stack, samples())
    fresh = samples()
    assert torch.equal(batch["image"], torch.from_numpy(np.stack([s["image"] for s in fresh])))
    assert batch["image"].is_contiguous()
    assert batch["weight"].dtype == torch.float32 and batch["weight"].tolist() == [
        0,
        0.5,
        1,
        1.5,
        2,
    ]
    assert batch["flag"].dtype == torch.bool and batch["flag"].tolist() == [
        s["flag"] for s in fresh
    ]
    assert batch["note"] == [{"any": "thing"}] * 5


def test_stack_takes_tensors_numpy_scalars_and_views():
    made = samples(3)
    for i, sample in enumerate(made):
        sample["image"] = sample["image"][::-1, :, ::-1]
        sample["features"] = torch.full((4,), float(i))
        sample["label"] = np.int32(i)
        sample["zero_axes"] = np.array(i)
        sample["tensor_label"] = torch.tensor(i)
    batch = stack(made)
    assert torch.equal(batch["image"][2], torch.from_numpy(made[2]["image"].copy()))
    assert batch["features"][:, 0].tolist() == [0, 1, 2]
    for name in ("label", "zero_axes", "tensor_label"):
        assert batch[name].dtype == torch.int64 and batch[name].tolist() == [0, 1, 2]


def test_unequal_shapes_are_named_with_the_remedy():
    made = samples(3)
    made[1]["image"] = np.zeros((9, 6, 3), np.uint8)
    shapes = r"'image' is \[8, 6, 3\] in sample '0.jpg' and \[9, 6, 3\] in '1.jpg'"
    with pytest.raises(ValueError, match=shapes + ".*resize.*collate=pad"):
        stack(made)
    with pytest.raises(ValueError, match=r"take 'image' out of collate\.stacked"):
        ListCollate()(made)
    made = samples(3)
    made[2]["image"] = made[2]["image"].astype(np.float32)
    with pytest.raises(ValueError, match=r"uint8 in sample '0.jpg' and float32 in '2.jpg'"):
        stack(made)


def test_mixed_presence_names_the_key_and_both_samples():
    made = samples(3)
    made[2]["boxes"] = np.zeros((1, 4), np.float32)
    with pytest.raises(ValueError, match=r"'boxes' is in sample '2.jpg' but not in '0.jpg'"):
        stack(made)


def test_list_keeps_ragged_arrays_as_they_are():
    batch = check_collate(ListCollate(), samples(ragged=True))
    fresh = samples(ragged=True)
    for name in ("tokens", "frames"):
        for tensor, sample in zip(batch[name], fresh, strict=True):
            assert torch.equal(tensor, torch.from_numpy(sample[name]))
    assert batch["image"].shape == (5, 8, 6, 3)


def test_list_does_not_depend_on_shapes_that_happen_to_be_equal():
    made = samples(2)
    for sample in made:
        sample["boxes"] = np.zeros((3, 4), np.float32)
    assert isinstance(ListCollate()(made)["boxes"], list)
    assert isinstance(ListCollate(stacked=["boxes"])(made)["boxes"], torch.Tensor)
    assert isinstance(ListCollate(stacked=["boxes"])(made)["image"], list)


def test_pad_fills_up_to_the_longest_with_lengths_and_mask():
    collate = PaddedCollate(value={"tokens": -1})
    batch = check_collate(collate, samples(ragged=True))
    fresh = samples(ragged=True)
    assert batch["tokens"].shape == (5, 5) and batch["frames"].shape == (5, 9, 4)
    assert batch["tokens_lengths"].tolist() == [1, 2, 3, 4, 5]
    assert batch["frames_lengths"].tolist() == [1, 3, 5, 7, 9]
    for row, sample in enumerate(fresh):
        length = len(sample["tokens"])
        assert batch["tokens"][row].tolist() == sample["tokens"].tolist() + [-1] * (5 - length)
        assert batch["tokens_mask"][row].tolist() == [True] * length + [False] * (5 - length)
        assert torch.equal(batch["frames"][row, : 2 * row + 1], torch.tensor(sample["frames"]))
        assert not batch["frames"][row, 2 * row + 1 :].any()
    assert batch["image"].shape == (5, 8, 6, 3) and "image_mask" not in batch
    assert collate.overhead(batch) == (15 + 25, 25 + 45)


@pytest.mark.parametrize(
    ("options", "lengths"),
    [({"multiple_of": 8}, (8, 16)), ({"buckets": [32, 6, 12]}, (6, 12)), ({}, (5, 9))],
)
def test_pad_rounds_lengths_up(options, lengths):
    batch = PaddedCollate(**options)(samples(ragged=True))
    assert (batch["tokens"].shape[1], batch["frames"].shape[1]) == lengths
    assert batch["tokens_lengths"].tolist() == [1, 2, 3, 4, 5]


def test_a_length_above_the_last_bucket_is_an_error():
    with pytest.raises(ValueError, match=r"'frames' has length 9, the largest bucket is 8; add"):
        PaddedCollate(buckets=[8])(samples(ragged=True))


def test_pad_fills_images_on_two_axes():
    made = samples(3)
    made[1]["image"] = np.full((4, 10, 3), 9, np.uint8)
    collate = PaddedCollate(fields={"image": 2}, multiple_of=4)
    batch = collate(made)
    assert batch["image"].shape == (3, 8, 12, 3)
    assert batch["image_lengths"].tolist() == [[8, 6], [4, 10], [8, 6]]
    assert batch["image_mask"].shape == (3, 8, 12)
    assert batch["image_mask"].sum((1, 2)).tolist() == [48, 40, 48]
    assert (batch["image"][1] == 9).sum() == 4 * 10 * 3
    assert torch.equal(batch["image"][0, :8, :6], torch.from_numpy(made[0]["image"]))
    assert collate.overhead(batch) == (136, 3 * 96)


def test_fields_that_are_equal_by_chance_are_padded_all_the_same():
    made = samples(2)
    for sample in made:
        sample["tokens"] = np.arange(3)
    batch = PaddedCollate()(made)
    assert batch["tokens_lengths"].tolist() == [3, 3] and batch["tokens_mask"].all()
    assert PaddedCollate().overhead(batch) == (6, 6)


def test_empty_arrays_are_padded():
    made = samples(2)
    for i, sample in enumerate(made):
        sample["boxes"] = np.ones((2 * i, 4), np.float32)
    batch = PaddedCollate()(made)
    assert batch["boxes"].shape == (2, 2, 4) and batch["boxes_lengths"].tolist() == [0, 2]
    assert not batch["boxes"][0].any() and batch["boxes"][1].all()


def test_pad_says_what_cannot_be_padded():
    made = samples(2)
    made[0]["frames"], made[1]["frames"] = np.zeros((3, 4)), np.zeros((3, 5))
    with pytest.raises(ValueError, match=r"\[3, 4\].*\[3, 5\].*only the first 1 axes may differ"):
        PaddedCollate()(made)
    with pytest.raises(ValueError, match="no array 'words'; fields: image"):
        PaddedCollate(fields={"words": 1})(made)
    with pytest.raises(ValueError, match="both multiple_of and buckets"):
        PaddedCollate(multiple_of=2, buckets=[3])


def test_pad_says_how_its_stacked_fields_may_be_ragged():
    images = [np.zeros((size, 4, 3), np.uint8) for size in (5, 6)]
    samples = [{"image": image, "key": str(i)} for i, image in enumerate(images)]
    with pytest.raises(ValueError, match=r"\[5, 4, 3\].*\[6, 4, 3\].*collate\.fields=\{image:2\}"):
        PaddedCollate()(samples)


def test_the_schema_refuses_lengths_below_one():
    for key, value in {"multiple_of": "0", "buckets": "[4, 0]"}.items():
        with pytest.raises(ConfigError) as error:
            compose(["collate=pad", f"collate.{key}={value}"])
        assert {problem.key.partition("[")[0] for problem in error.value.problems} == {
            f"collate.{key}"
        }
