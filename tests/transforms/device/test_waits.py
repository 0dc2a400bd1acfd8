"""Steps on a device: nothing that waits for it, and few copies of the batch at once."""

import pytest
import torch

from penstock.transforms.device.normalize import Normalize, to_float
from penstock.transforms.device.steps import apply_steps, host_draws
from tests.transforms.device.drawn_rows import MASKED, STEPS, as_floats, batch, masked, step
from tests.waits import PeakMemory, on_meta, waits


def named(name):
    options = {"value": 0.1} if name == "random_erasing" else {}
    return step(name, **options)


def drawn(steps, given):
    """Draw on the host, then put everything on the meta device."""
    host = dict(given)
    draws = host_draws(steps, host)
    tensors = [{name: torch.from_numpy(draw) for name, draw in each.items()} for each in draws]
    return on_meta(host), on_meta(tensors)


def seen(steps, given):
    """Return what waits when steps are applied for the second time, and the result."""
    there, draws = drawn(steps, given)
    apply_steps(steps, there, draws)
    with waits() as found:
        result = apply_steps(steps, there, draws)
    return found, result


@pytest.mark.parametrize("layout", [dict, as_floats])
@pytest.mark.parametrize("name", STEPS)
def test_no_step_waits_for_its_device(name, layout):
    found, result = seen([named(name)], layout(masked(batch()) if name in MASKED else batch()))
    assert not found and result["image"].is_meta


def test_stacks_do_not_wait():
    steps = [step("mixup", p=0.5), step("cutmix"), Normalize(), step("random_erasing", value=0)]
    assert not seen(steps, {**batch(), "labels": torch.rand(32, 5)})[0]
    assert not seen([to_float, step("random_erasing", value=0)], batch())[0]


WAITING = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool((t > 0).any()),
    "list": lambda t: t.flatten()[0].tolist(),
    "mask": lambda t: t[t > 0],
    "nonzero": lambda t: t.nonzero(),
    "cpu": lambda t: t.cpu(),
    "to": lambda t: torch.ones(3).to(t.device),
    "copy_": lambda t: t.copy_(torch.ones(t.shape)),
    "put": lambda t: t.index_put_((t > 0,), t.new_zeros(())),
    "tensor": lambda t: torch.tensor([1.0, 2.0], device=t.device),
}


@pytest.mark.parametrize("name", WAITING)
def test_waits_are_seen(name):
    with waits() as found:
        WAITING[name](torch.ones(4, 4, device="meta"))
    assert len(found) == 1


def test_operations_without_a_wait_are_not_seen():
    given = torch.ones(4, 4, device="meta")
    with waits() as found:
        given[torch.zeros(3, dtype=torch.int64, device="meta")].masked_fill_(given[:3] > 0, 2)
        torch.ones(3).to("meta", non_blocking=True)
        given.copy_(torch.ones(4, 4), non_blocking=True)
        torch.arange(4, device="meta").where(given > 0, 1)
    assert not found


def peak(name, given, **options):
    """Return the peak memory of a step in units of its images, which count themselves."""
    made = step(name, **options)
    there, draws = drawn([made], given)
    image = there["image"]
    with PeakMemory(image, *draws[0].values()) as memory:
        result = apply_steps([made], there, draws)["image"]
    assert memory.peak_bytes >= image.nbytes + result.nbytes
    return memory.peak_bytes / image.nbytes


@pytest.mark.parametrize("layout", ["bytes", "floats"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("color_jitter", {}),
        ("color_jitter", {"hue": 0.0}),
        ("random_resized_crop", {"size": 256}),
        ("random_crop", {"size": None}),
        ("random_flip", {}),
        ("random_erasing", {}),
        ("mixup", {}),
        ("cutmix", {}),
    ],
)
def test_peak_memory_is_at_most_four_times_the_images(name, options, layout):
    count = 256
    shape = {"bytes": (count, 256, 256, 3), "floats": (count, 3, 256, 256)}[layout]
    dtype = torch.uint8 if layout == "bytes" else torch.float32
    given = {
        "image": torch.empty(shape, dtype=dtype, device="meta"),
        "label": torch.zeros(count, dtype=torch.int64),
        "position": torch.arange(count),
        "epoch": torch.zeros(count, dtype=torch.int64),
    }
    assert peak(name, given, **options) <= 4
