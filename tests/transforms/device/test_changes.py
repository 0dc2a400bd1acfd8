"""Steps joined into one: what they give one after the other, however the batch is cut."""

import pickle

import pytest
import torch

from penstock.transforms.device.normalize import to_float
from penstock.transforms.device.rows.changes import RowChange, RowSteps, changed_rows, joined_steps
from tests.transforms.device.test_random_crop import batch, crop
from tests.transforms.device.test_random_flip import flip


def chain():
    return [crop(padding=3), flip(p=0.4), crop(size=[8, 5], step="crop2")]


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_joined_steps_give_what_each_gives_in_turn(channels):
    given = expected = batch(channels=channels)
    before = given["image"].clone()
    for step in chain():
        expected = step(expected)
    result = pickle.loads(pickle.dumps(RowSteps(chain())))(given)
    for field in ("image", "mask"):
        assert torch.equal(result[field], expected[field])
        assert result[field].dtype == given[field].dtype and result[field].is_contiguous()
    assert torch.equal(given["image"], before) and list(result) == list(given)


def test_lists_floats_and_other_layouts_are_changed_alike():
    given = batch()
    expected = RowSteps(chain())(given)
    listed = RowSteps(chain())({**given, "image": list(given["image"])})["image"]
    assert torch.equal(torch.stack(listed), expected["image"])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        floats = to_float(given)["image"].to(dtype)
        whole = RowSteps(chain())({**given, "image": floats})["image"]
        assert torch.equal(whole, to_float(expected)["image"].to(dtype))
        assert whole.dtype == dtype
    strided = torch.stack([given["image"]] * 2, 1)[:, 1]
    assert torch.equal(RowSteps(chain())({**given, "image": strided})["image"], expected["image"])


def test_a_step_may_follow_one_that_gives_a_view():
    given = batch()
    turned = RowChange(
        lambda pixels, rows: pixels.copy().swapaxes(1, 2), lambda image, rows: image.mT
    )
    flipped = flip(p=0.4).row_change(given)
    expected = flip(p=0.4)({**given, "image": given["image"].swapaxes(1, 2).contiguous()})["image"]
    image = changed_rows({**given, "image": given["image"]}, [turned, flipped])["image"]
    assert torch.equal(image, expected)
    assert not torch.equal(image, given["image"].swapaxes(1, 2))


def test_nothing_is_done_in_evaluation_and_to_a_batch_without_rows():
    given = batch()
    assert RowSteps([crop("val"), flip("val")])(given) is given
    empty = {name: value[:0] for name, value in given.items()}
    assert RowSteps(chain())(empty)["image"].shape == (0, 8, 5, 3)


def test_neighbours_are_joined_and_others_left():
    steps = [*chain(), to_float, flip(step="late")]
    joined = joined_steps(steps)
    assert [type(step) for step in joined] == [RowSteps, type(to_float), RowSteps]
    assert joined[0].steps == tuple(steps[:3]) and joined[1] is to_float


def test_a_subclass_is_left_alone():
    class Inverted(type(flip())):
        def __call__(self, given):
            return {**given, "image": 255 - given["image"]}

    own = Inverted(seed=0, split="train", step="own")
    assert joined_steps([own]) == [own]
