"""Every step that draws for rows: draws by position, arithmetic on any kind of batch."""

import copy
import pickle
import random

import numpy as np
import pytest
import torch

from penstock.transforms.device.log_mel import LogMel
from penstock.transforms.device.normalize import Normalize, to_float
from penstock.transforms.device.steps import StepChain, apply_steps, host_draws
from tests.contracts.equality import untouched_global_states
from tests.transforms.device.drawn_rows import (
    MASKED,
    PAIRS,
    STEPS,
    as_floats,
    batch,
    by_tensors,
    masked,
    part,
    same,
    step,
)

LAYOUTS = {
    "bytes": lambda given: given,
    "floats": as_floats,
    "contiguous floats": lambda given: {
        **as_floats(given),
        "image": as_floats(given)["image"].contiguous(),
    },
}
EVERY = pytest.mark.parametrize("name", STEPS)
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def of(name, layout="bytes", **more):
    value = 0.4 if layout != "bytes" else 0.0
    return step(name, **({"value": value} if name == "random_erasing" else {}), **more)


def stack():
    names = ("random_resized_crop", "random_flip", "color_jitter", "grayscale")
    steps = [step(name, called=name) for name in names]
    steps += [step("mixup", p=0.5, called="mixup"), step("cutmix", called="cutmix"), Normalize()]
    return [*steps, step("random_erasing", called="erase")]


def both(steps, given):
    """Draw for all steps at once, then apply them."""
    return apply_steps(steps, given, host_draws(steps, given))


def as_arrays(given):
    return {key: v.numpy() if isinstance(v, torch.Tensor) else v for key, v in given.items()}


@LAYOUT
@EVERY
def test_a_batch_may_be_cut_anywhere_between_groups(name, layout):
    whole = LAYOUTS[layout](batch(33))
    made = step(name)
    expected = made(whole)
    rng = random.Random(0)
    for _ in range(12):
        start, stop = sorted(rng.sample(range(34), 2))
        if name in PAIRS:
            start, stop = start // 2 * 2, stop + stop % 2
        rows = slice(start, stop)
        assert same(made(part(whole, rows)), part(expected, rows))
    if name not in PAIRS:
        order = torch.randperm(33, generator=torch.Generator().manual_seed(1))
        mixed = {key: value[order] for key, value in whole.items() if key != "key"}
        assert torch.equal(made(mixed)["image"], expected["image"][order])


@EVERY
def test_seed_epoch_position_and_name_alone_decide(name):
    with untouched_global_states():
        image = step(name)(batch())["image"]
    assert torch.equal(pickle.loads(pickle.dumps(step(name)))(batch())["image"], image)
    for other in (
        step(name)(batch(epoch=3)),
        step(name, seed=8)(batch()),
        step(name, called="other")(batch()),
        step(name)(batch(start=102)),
    ):
        assert not torch.equal(other["image"], image)


@EVERY
def test_evaluation_and_a_batch_without_rows(name):
    given = batch()
    options = {"size": None} if name == "random_crop" else {}
    options = {"size": [15, 13]} if name == "random_resized_crop" else options
    made = step(name, "val", **options)
    assert made(given) is given and made.group == 1
    assert len(step(name)(part(given, slice(0, 0)))["image"]) == 0


@LAYOUT
@EVERY
def test_devices_and_arrays_give_the_same_and_the_given_batch_stays(name, layout):
    given = LAYOUTS[layout](masked(batch()) if name in MASKED else batch())
    before = copy.deepcopy(given)
    here, there = of(name, layout)(given), by_tensors(of(name, layout))(given)
    away = (here["image"].float() - there["image"].float()).abs()
    scale = 1 if layout == "bytes" else 255
    # OpenCV interpolates bytes with weights of 11 bits.
    assert (away * scale).max() <= 1.01 and (away * scale).mean() < 0.15
    assert same(*({**result, "image": None} for result in (here, there)))
    assert same(given, before) and not torch.equal(here["image"], given["image"])
    if layout == "floats":
        assert here["image"].is_contiguous(memory_format=torch.channels_last)
    arrays = of(name, layout)(as_arrays(given))
    for key, value in as_arrays(here).items():
        assert type(arrays[key]) is type(value) and np.array_equal(arrays[key], value)
        assert key == "key" or arrays[key].dtype == value.dtype


@pytest.mark.parametrize("name", [name for name in STEPS if "color" not in name])
def test_refused_fields_lists_and_missing_positions(name):
    made = step(name)
    for field in made.refused:
        with pytest.raises(ValueError, match=rf"augment\.device\.step: the batch has {field}"):
            made({**batch(), field: []})
    with pytest.raises(ValueError, match=r"augment\.device\.step: images are a list"):
        made({**batch(), "image": list(batch()["image"])})
    if name not in PAIRS:
        with pytest.raises(ValueError, match="the batch lacks the field 'epoch'"):
            made({key: value for key, value in batch().items() if key != "epoch"})


def test_windows_fit_the_sizes_that_earlier_steps_leave():
    erase = step("random_erasing", p=1.0, scale=[0.9, 1.0], value=0.0)
    steps = [step("random_resized_crop", size=[30, 9]), step("random_crop", size=8), erase]
    windows = host_draws(steps, batch())[2]["windows"]
    assert (windows[:, :2] + windows[:, 2:]).max() == 8


@pytest.mark.parametrize("made", [Normalize(), to_float, LogMel()])
def test_steps_without_draws_take_arrays_too(made):
    given = {**batch(), "audio": torch.rand(32, 4000)}
    result, expected = made(as_arrays(given))["image"], made(given)["image"]
    assert type(result) is np.ndarray and np.array_equal(result, expected.numpy())


@pytest.mark.parametrize("count", [0, 5, 90])
def test_workers_move_pixels_in_pieces(count):
    given = as_arrays(masked(batch(count, 120, 130)))
    crop, flip = step("random_crop", size=[119, 120]), step("random_flip")
    result, expected = StepChain([crop, flip])(given), both([crop, flip], given)
    assert result.keys() == expected.keys()
    for field in ("image", "mask"):
        assert result[field].dtype == expected[field].dtype
        assert np.array_equal(result[field], expected[field])


def test_no_gradients_and_no_autocast():
    given = as_floats(batch())
    expected = both(stack()[:-2], given)["image"]
    with torch.autocast("cpu", torch.bfloat16):
        result = both(stack()[:-2], {**given, "image": given["image"].clone().requires_grad_()})
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(result["image"], expected) and not result["image"].requires_grad


def test_a_callable_is_called_in_its_place_and_may_not_resize_before_a_draw():
    def inverted(given):
        return {**given, "image": 255 - given["image"]}

    def halved(given):
        return {**given, "image": given["image"][:, ::2]}

    given, crop, flip = batch(), step("random_crop", size=8), step("random_flip")
    expected = flip(crop(inverted(given)))
    assert same(both([inverted, crop, flip], given), expected)
    assert both([crop, halved], given)["image"].shape[1] == 4
    with pytest.raises(ValueError, match="halved changes sizes"):
        both([halved, crop], given)
