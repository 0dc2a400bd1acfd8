"""Stack, list and pad: tensors of samples without nested dicts, alone and in given memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.core.sample import Sample
from penstock.pipeline.collates.fields import ListCollate, PaddedCollate, StackCollate, stack
from tests.contracts.collate import InTensors, check_collate, in_tensors
from tests.contracts.equality import assert_same

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


def changed(count: int, **fields) -> list[Sample]:
    """Samples, the last with other fields."""
    made = samples(count, ragged=True)
    made[-1] |= fields
    return made


def test_stack_keeps_the_contract_and_every_pixel():
    batch, fresh = check_collate(stack, samples()), samples()
    assert torch.equal(batch["image"], torch.from_numpy(np.stack([s["image"] for s in fresh])))
    assert batch["image"].is_contiguous()
    for name, dtype in (("weight", torch.float32), ("flag", torch.bool)):
        assert batch[name].dtype == dtype
        assert batch[name].tolist() == [sample[name] for sample in fresh]
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


def test_complex_numbers_are_a_list_also_as_a_column():
    values = [1 + 2j, 3j, 2j]
    made = [{**sample, "z": z} for sample, z in zip(samples(3), values, strict=True)]
    assert stack(made)["z"] == values
    assert StackCollate().columns({"z": np.array(values)})["z"] == values


@pytest.mark.parametrize("number", [1 << 63, np.uint64(1 << 63), np.array(1 << 63, np.uint64)])
def test_integers_that_torch_lacks_are_refused(number):
    with pytest.raises(ValueError, match=r"'label' is 9223372036854775808.*{label:null}"):
        stack(changed(2, label=number))
    with pytest.raises(ValueError, match=r"'label' is 9223372036854775808.*{label:null}"):
        StackCollate().columns({"label": np.array([1, number], np.uint64)})


@pytest.mark.parametrize(
    ("collate", "made", "message"),
    [
        (stack, changed(2, image=np.zeros((9, 6, 3), np.uint8)),
         r"'image' is \[8, 6, 3\] in sample '0.jpg' and \[9, 6, 3\] in '1.jpg'.*resize.*=pad"),
        (stack, changed(1) + changed(1, image=np.zeros((8, 6, 3), np.float32)), "uint8 .*float32"),
        (stack, changed(3, boxes=1), r"'boxes' is in sample '2.jpg' but not in '0.jpg'"),
        (ListCollate(), changed(2, image=np.zeros((9, 6, 3), np.uint8)),
         r"take 'image' out of collate\.stacked"),
        (PaddedCollate(), changed(2, image=np.zeros((9, 6, 3), np.uint8)),
         r"collate\.fields=\{image:2\}"),
        (PaddedCollate(), changed(2, frames=np.zeros((3, 5), np.float32)),
         r"\[1, 4\].*\[3, 5\].*only the first 1 axes may differ"),
        (PaddedCollate(fields={"words": 1}), samples(), "no array 'words'; fields: image"),
    ],
)  # fmt: skip
def test_samples_that_do_not_fit_are_named_with_the_remedy(collate, made, message):
    with pytest.raises(ValueError, match=message):
        collate(made)


def test_list_keeps_ragged_arrays_as_they_are_even_if_equal_by_chance():
    batch = check_collate(ListCollate(), samples(ragged=True))
    for name in ("tokens", "frames"):
        for tensor, sample in zip(batch[name], samples(ragged=True), strict=True):
            assert torch.equal(tensor, torch.from_numpy(sample[name]))
    assert batch["image"].shape == (5, 8, 6, 3)
    equal = [sample | {"boxes": np.zeros((3, 4), np.float32)} for sample in samples(2)]
    assert isinstance(ListCollate()(equal)["boxes"], list)
    assert isinstance(ListCollate(stacked=["boxes"])(equal)["boxes"], torch.Tensor)
    assert isinstance(ListCollate(stacked=["boxes"])(equal)["image"], list)


def test_pad_fills_up_to_the_longest_with_lengths_and_mask():
    collate = PaddedCollate(value={"tokens": -1})
    batch = check_collate(collate, samples(ragged=True))
    assert batch["tokens"].shape == (5, 5) and batch["frames"].shape == (5, 9, 4)
    assert batch["tokens_lengths"].tolist() == [1, 2, 3, 4, 5]
    assert batch["frames_lengths"].tolist() == [1, 3, 5, 7, 9]
    for row, sample in enumerate(samples(ragged=True)):
        length = len(sample["tokens"])
        assert batch["tokens"][row].tolist() == sample["tokens"].tolist() + [-1] * (5 - length)
        assert batch["tokens_mask"][row].tolist() == [True] * length + [False] * (5 - length)
        assert torch.equal(batch["frames"][row, : 2 * row + 1], torch.tensor(sample["frames"]))
        assert not batch["frames"][row, 2 * row + 1 :].any()
    assert batch["image"].shape == (5, 8, 6, 3) and "image_mask" not in batch
    assert collate.overhead(batch) == (15 + 25, 25 + 45)
    rounded = PaddedCollate(multiple_of=8)(samples(ragged=True))
    assert rounded["tokens"].shape == (5, 8) and rounded["frames"].shape == (5, 16, 4)


def test_pad_fills_images_on_two_axes_and_empty_arrays():
    made = samples(3)
    made[1]["image"] = np.full((4, 10, 3), 9, np.uint8)
    for i, sample in enumerate(made):
        sample["boxes"] = np.ones((2 * i, 4), np.float32)
    batch = PaddedCollate()([made[0] | {"image": made[2]["image"]}, made[2]])
    assert batch["boxes"].shape == (2, 4, 4) and batch["boxes_lengths"].tolist() == [0, 4]
    assert not batch["boxes"][0].any() and batch["boxes"][1].all()
    collate = PaddedCollate(fields={"image": 2}, multiple_of=4)
    batch = collate([{"image": sample["image"]} for sample in made])
    assert batch["image"].shape == (3, 8, 12, 3) and batch["image_mask"].shape == (3, 8, 12)
    assert batch["image_lengths"].tolist() == [[8, 6], [4, 10], [8, 6]]
    assert batch["image_mask"].sum((1, 2)).tolist() == [48, 40, 48]
    assert (batch["image"][1] == 9).sum() == 4 * 10 * 3
    assert torch.equal(batch["image"][0, :8, :6], torch.from_numpy(made[0]["image"]))
    assert collate.overhead(batch) == (136, 3 * 96)


def in_rows() -> tuple[list[Sample], np.ndarray]:
    """Samples whose images are in the memory of a batch, and the memory."""
    made, rows = samples(), np.empty((5, 8, 6, 3), np.uint8)
    for sample, row in zip(made, rows, strict=True):
        row[...] = sample["image"]
        sample["image"] = row
    return made, rows


def test_images_in_the_memory_of_the_batch_are_not_copied_and_others_are():
    made, rows = in_rows()
    made[4]["image"] = made[4]["image"].copy()
    rows[4] = 0
    batch = stack.into(made, rows=rows)
    assert_same(batch, stack(samples()))
    assert batch["image"].data_ptr() == rows.ctypes.data


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.pop(1),
        lambda made: made.reverse(),
        lambda made: made[0].update(image=made[1]["image"]),
        lambda made: made[3].update(image=made[3]["image"][::-1]),
    ],
    ids=["skipped", "other order", "twice", "turned view"],
)
def test_images_in_other_rows_than_their_own_are_copied(change):
    made, rows = in_rows()
    change(made)
    expected, before = stack(made), rows.copy()
    batch = stack.into(made, rows=rows)
    assert_same(batch, expected)
    assert np.array_equal(rows, before)
    rows[...] = 0
    assert_same(batch, expected)
