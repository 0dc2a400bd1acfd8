"""Stacks of steps: draws on the host, arithmetic on any kind of batch, steps of others between."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

from penstock.transforms.device.color_jitter import ColorJitter, Grayscale
from penstock.transforms.device.log_mel import LogMel
from penstock.transforms.device.normalize import Normalize, to_float
from penstock.transforms.device.random_erasing import RandomErasing
from penstock.transforms.device.random_resized_crop import RandomResizedCrop
from penstock.transforms.device.steps import StepChain, apply_steps, host_draws
from tests.transforms.device.drawn_rows import STEPS, as_floats, batch, same, step
from tests.transforms.device.test_random_crop import batch as small_batch
from tests.transforms.device.test_random_crop import crop
from tests.transforms.device.test_random_flip import flip
from tests.waits import on_meta

TRAIN = {"seed": 7, "split": "train"}


def movers():
    return [crop(padding=3), flip(p=0.4), crop(size=[8, 5], step="crop2")]


def stack():
    return [
        RandomResizedCrop(size=[12, 10], step="crop", **TRAIN),
        flip(),
        ColorJitter(p=0.8, random_order=True, step="color", **TRAIN),
        Grayscale(p=0.3, step="grey", **TRAIN),
        step("mixup", p=0.5, alpha=0.2, called="mixup"),
        step("cutmix", called="cutmix"),
        Normalize(),
        RandomErasing(p=0.5, step="erase", **TRAIN),
    ]


def both(steps, given):
    """Draw for all steps at once, then apply them."""
    host = dict(given)
    draws = host_draws(steps, host)
    return apply_steps(steps, host, draws)


def as_arrays(given):
    return {
        name: value.numpy() if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }


def with_boxes(given):
    corner = torch.rand(32, 6, 2, generator=torch.Generator().manual_seed(3)) * 8
    boxes = list(torch.cat([corner, corner + 4], 2))
    points = torch.cat([corner, torch.ones(32, 6, 1)], 2)
    return {**given, "boxes": boxes, "box_labels": list(torch.arange(192).reshape(32, 6)),
            "keypoints": points}  # fmt: skip


def flattened(value):
    return (
        [one for item in value for one in flattened(item)] if isinstance(value, list) else [value]
    )


def test_a_stack_gives_what_each_step_gives_in_turn():
    given = batch()
    expected = given
    for each in stack():
        expected = each(expected)
    assert same(both(stack(), given), expected)
    assert same(pickle.loads(pickle.dumps(StepChain(stack())))(given), expected)
    assert same(given, batch())


def test_shares_of_one_leave_a_pair_to_the_next_step():
    given = batch(4000, 4, 4)
    steps = [step("mixup", alpha=0.05, called="a"), step("cutmix", called="b")]
    expected = steps[1](steps[0](given))
    assert (steps[0](given)["label_weight"] == 1).any()
    assert same(both(steps, given), expected)


@pytest.mark.parametrize("name", STEPS)
def test_draws_are_small_arrays_by_position(name):
    steps = [step(name)]
    [draws] = host_draws(steps, batch(64, 40, 40))
    assert all(type(draw) is np.ndarray for draw in draws.values())
    assert sum(draw.nbytes for draw in draws.values()) < 64 * 64
    [again] = host_draws(steps, as_arrays(batch(64, 40, 40)))
    assert draws.keys() == again.keys()
    assert all(np.array_equal(draws[key], again[key]) for key in draws)


@pytest.mark.parametrize("name", STEPS)
def test_pixels_and_labels_stay_on_their_device(name):
    given = batch()
    host = {**given, "image": on_meta(given["image"]), "label": on_meta(given["label"])}
    [expected], [draws] = (host_draws([step(name)], each) for each in (given, host))
    assert expected.keys() == draws.keys()
    assert all(np.array_equal(expected[key], draws[key]) for key in draws)


def test_windows_fit_the_sizes_that_earlier_steps_leave():
    steps = [
        RandomResizedCrop(size=[30, 9], step="crop", **TRAIN),
        crop(size=[8, 8]),
        RandomErasing(p=1.0, step="erase", **TRAIN),
    ]
    draws = host_draws(steps, batch())
    windows = draws[2]["windows"]
    assert (windows[:, :2] + windows[:, 2:]).max() == 8
    given = {
        "audio": torch.rand(4, 1600),
        "position": torch.arange(4),
        "epoch": torch.zeros(4).long(),
    }
    steps = [LogMel(num_bands=20), RandomErasing(p=1.0, scale=[0.9, 1.0], ratio=[0.3, 3.3],
                                                 step="erase", **TRAIN)]  # fmt: skip
    windows = host_draws(steps, dict(given))[1]["windows"]
    image = both(steps, given)["image"]
    assert (windows[:, :2] + windows[:, 2:] <= [20, image.shape[3]]).all() and windows.any()


def test_boxes_and_points_are_moved_with_the_draws():
    given = with_boxes(batch())
    cropping = RandomResizedCrop(size=[12, 10], step="crop", **TRAIN)
    host = dict(given)
    draws = host_draws([cropping], host)
    result = apply_steps([cropping], host, draws)
    assert same_fields(result, cropping(given))
    for name in ("boxes", "box_labels", "keypoints"):
        assert result[name] is host[name] and host[name] is not given[name]
    listed = cropping({**given, "image": list(given["image"])})
    assert same_fields(listed, result)


def same_fields(one, other):
    return list(one) == list(other) and all(
        np.array_equal(np.asarray(a), np.asarray(b))
        for name in one
        for a, b in zip(flattened(one[name]), flattened(other[name]), strict=True)
    )


@pytest.mark.parametrize("layout", ["bytes", "floats"])
@pytest.mark.parametrize("name", STEPS)
def test_arrays_give_arrays_that_equal_the_tensors(name, layout):
    options = {"value": 0.4} if layout == "floats" and name == "random_erasing" else {}
    given = batch() if layout == "bytes" else as_floats(batch())
    made = step(name, **options)
    result, expected = made(as_arrays(given)), made(given)
    assert all(type(result[key]) is np.ndarray for key in result if key != "key")
    assert same_fields(result, expected)
    assert {key: result[key].dtype for key in result if key != "key"} == {
        key: value.numpy().dtype for key, value in expected.items() if key != "key"
    }


@pytest.mark.parametrize("made", [Normalize(), to_float, LogMel()])
def test_steps_without_draws_take_arrays_too(made):
    given = {**batch(), "audio": torch.rand(32, 4000)}
    result, expected = made(as_arrays(given))["image"], made(given)["image"]
    assert type(result) is np.ndarray and np.array_equal(result, expected.numpy())


def test_arrays_need_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from penstock.transforms.device import random_crop, random_flip, random_resized_crop\n"
        "from penstock.transforms.device.color_jitter import ColorJitter\n"
        "from penstock.transforms.device.normalize import Normalize\n"
        "given = {'image': np.zeros((4, 9, 9, 3), np.uint8), 'position': np.arange(4)}\n"
        "given['epoch'] = np.zeros(4, np.int64)\n"
        "train = {'seed': 1, 'split': 'train', 'step': 's'}\n"
        "for step in (random_crop.RandomCrop(padding=2, **train),\n"
        "             random_flip.RandomFlip(**train),\n"
        "             random_resized_crop.RandomResizedCrop(size=8, **train),\n"
        "             ColorJitter(**train), Normalize()):\n"
        "    given = step(given)\n"
        "assert given['image'].shape == (4, 3, 8, 8)\n"
        "print('torch' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_lists_floats_and_other_layouts_are_moved_alike(channels):
    given = small_batch(channels=channels)
    expected = StepChain(movers())(given)
    listed = StepChain(movers())({**given, "image": list(given["image"])})["image"]
    assert torch.equal(torch.stack(listed), expected["image"])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        floats = to_float(given)["image"].to(dtype)
        whole = StepChain(movers())({**given, "image": floats})["image"]
        assert torch.equal(whole, to_float(expected)["image"].to(dtype))
        assert whole.dtype == dtype
    strided = torch.stack([given["image"]] * 2, 1)[:, 1]
    assert torch.equal(StepChain(movers())({**given, "image": strided})["image"], expected["image"])


def test_the_memory_format_stays():
    given = to_float(batch(32, 16, 16))
    steps = [each for each in stack() if not isinstance(each, Normalize)]
    for made in steps:
        image = made(given)["image"]
        assert image.is_contiguous(memory_format=torch.channels_last), type(made)


def test_nothing_is_done_in_evaluation_and_to_a_batch_without_rows():
    given = small_batch()
    assert StepChain([crop("val"), flip("val")])(given) is given
    empty = {name: value[:0] for name, value in given.items()}
    assert StepChain(movers())(empty)["image"].shape == (0, 8, 5, 3)


def test_no_gradients_and_no_autocast():
    given = as_floats(batch())
    expected = both(stack()[:-2], given)["image"]
    with torch.autocast("cpu", torch.bfloat16):
        result = both(stack()[:-2], {**given, "image": given["image"].clone().requires_grad_()})
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(result["image"], expected) and not result["image"].requires_grad


def test_callables_of_others_are_called_in_their_place():
    def inverted(given):
        return {**given, "image": 255 - given["image"]}

    class Inverted(type(flip())):
        def __call__(self, given):
            return inverted(super().__call__(given))

    own = Inverted(seed=7, split="train", step="flip")
    given = small_batch()
    expected = inverted(flip()(crop(padding=2)(given)))
    for steps in ([crop(padding=2), own], [inverted, crop(size=8), flip()]):
        result = both(steps, given)
        assert same(result, StepChain(steps)(given))
    assert torch.equal(both([crop(padding=2), own], given)["image"], expected["image"])


def test_a_callable_that_resizes_before_a_draw_is_refused():
    def halved(given):
        return {**given, "image": given["image"][:, ::2]}

    given = small_batch()
    assert both([crop(padding=2), halved], given)["image"].shape[1] == 6
    with pytest.raises(ValueError, match="halved changes sizes"):
        both([halved, crop(padding=2)], given)
    assert StepChain([halved, crop(padding=2)])(given)["image"].shape[1] == 6
