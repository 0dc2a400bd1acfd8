"""Every step that draws for rows: a row's result is a matter of its position alone."""

import pickle
import random

import numpy as np
import pytest
import torch

from tests.transforms.device.drawn_rows import (
    PAIRS,
    STEPS,
    as_floats,
    batch,
    by_tensors,
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", STEPS)
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


@pytest.mark.parametrize("name", STEPS)
def test_the_batch_that_was_given_stays(name):
    given = batch()
    before = {key: value.clone() if hasattr(value, "clone") else value for key, value in
              given.items()}  # fmt: skip
    assert not torch.equal(step(name)(given)["image"], given["image"])
    assert same(given, before)
    floats = as_floats(given)
    kept = floats["image"].clone()
    step(name)(floats)
    assert torch.equal(floats["image"], kept)


@pytest.mark.parametrize("name", STEPS)
def test_epoch_seed_position_and_name_decide(name):
    image = step(name)(batch())["image"]
    assert torch.equal(pickle.loads(pickle.dumps(step(name)))(batch())["image"], image)
    for other in (
        step(name)(batch(epoch=3)),
        step(name, seed=8)(batch()),
        step(name, called="other")(batch()),
        step(name)(batch(start=102)),
    ):
        assert not torch.equal(other["image"], image)


@pytest.mark.parametrize("name", STEPS)
def test_global_random_states_are_left_alone(name):
    states = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()
    step(name)(batch())
    assert random.getstate() == states[0]
    assert (np.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.random.get_rng_state(), states[2])


@pytest.mark.parametrize("name", STEPS)
def test_evaluation_draws_nothing(name):
    given = batch()
    options = {"size": [15, 13]} if name == "random_resized_crop" else {}
    made = step(name, "val", **options)
    assert made(given) is given
    assert getattr(made, "group", 1) == 1


@pytest.mark.parametrize("name", [name for name in STEPS if name not in PAIRS])
def test_rows_may_stand_in_any_order_and_be_lists(name):
    whole = batch()
    expected = step(name)(whole)["image"]
    order = torch.randperm(32, generator=torch.Generator().manual_seed(1))
    mixed = {key: value[order] for key, value in whole.items() if key != "key"}
    assert torch.equal(step(name)(mixed)["image"], expected[order])
    listed = step(name)({**whole, "image": list(whole["image"])})["image"]
    assert all(torch.equal(a, b) for a, b in zip(listed, expected, strict=True))


@pytest.mark.parametrize("name", STEPS)
def test_bytes_and_floats_get_the_same(name):
    given = batch()
    options = {"value": 0.0} if name == "random_erasing" else {}
    of_bytes = step(name, **options)(given)["image"]
    of_floats = step(name, **options)(as_floats(given))["image"].permute(0, 2, 3, 1) * 255
    away = (of_bytes.float() - of_floats).abs().max()
    # OpenCV interpolates bytes with weights of 11 bits.
    assert away <= (1.01 if name == "random_resized_crop" else 0.501)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", STEPS)
def test_the_arithmetic_for_devices_gives_the_same(name, layout):
    options = {"value": 0.4} if layout != "bytes" and name == "random_erasing" else {}
    given = LAYOUTS[layout](batch())
    before = given["image"].clone()
    here, there = step(name, **options)(given), by_tensors(step(name, **options))(given)
    away = (here["image"].float() - there["image"].float()).abs()
    scale = 1 if layout == "bytes" else 255
    # OpenCV interpolates bytes with weights of 11 bits.
    assert (away * scale).max() <= 1.01 and (away * scale).mean() < 0.15
    rest = [{**result, "image": None} for result in (here, there)]
    assert same(*rest)
    assert torch.equal(given["image"], before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", STEPS)
def test_floats_of_other_widths_get_the_same(name, dtype):
    options = {"value": 0.0} if name == "random_erasing" else {}
    given = as_floats(batch())
    result = step(name, **options)({**given, "image": given["image"].to(dtype)})["image"]
    expected = step(name, **options)(given)["image"]
    assert result.dtype == dtype
    away = (result.float() - expected).abs()
    assert away.mean() < 0.02 and (dtype is not torch.float64 or away.max() < 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", STEPS)
def test_a_device_gives_what_the_cpu_gives(name, layout):
    given = LAYOUTS[layout](batch())
    there = {key: value.cuda() if hasattr(value, "cuda") else value for key, value in given.items()}
    here, result = step(name)(given), step(name)(there)
    away = (here["image"].float() - result["image"].cpu().float()).abs()
    scale = 1 if layout == "bytes" else 255
    assert (away * scale).max() <= 1.01 and (away * scale).mean() < 0.15
    if "label_weight" in here:
        assert torch.allclose(here["label_weight"], result["label_weight"].cpu())
        assert torch.equal(here["label_other"], result["label_other"].cpu())
