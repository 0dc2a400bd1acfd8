"""Steps on a device: nothing that waits for it, and few copies of the batch at once."""

import pytest
import torch
from torch.utils._pytree import tree_map

from penstock.transforms.device.normalize import Normalize, to_float
from penstock.transforms.device.random_crop import RandomCrop
from penstock.transforms.device.random_flip import RandomFlip
from penstock.transforms.device.steps import apply_steps, host_draws
from tests.transforms.device.drawn_rows import PAIRS, STEPS, as_floats, batch, step
from tests.waits import PeakMemory, on_meta, waits

TRAIN = {"seed": 7, "split": "train", "step": "step"}
MOVERS = {
    "random_crop": lambda: RandomCrop(padding=2, **TRAIN),
    "random_crop with mirrors": lambda: RandomCrop(size=8, padding=2, padding_mode="reflect",
                                                   **TRAIN),
    "random_flip": lambda: RandomFlip(**TRAIN),
}  # fmt: skip


def named(name):
    options = {"value": [0.1, 0.2, 0.3]} if name == "random_erasing" else {}
    return MOVERS[name]() if name in MOVERS else step(name, **options)


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


@pytest.mark.parametrize("layout", ["bytes", "floats", "list"])
@pytest.mark.parametrize("name", [*STEPS, *MOVERS])
def test_no_step_waits_for_its_device(name, layout):
    if layout == "list" and name in PAIRS:
        pytest.skip("pairs are stacked")
    given = {"bytes": batch(), "floats": as_floats(batch())}.get(layout) or {
        **batch(),
        "image": list(batch()["image"]),
    }
    if name in MOVERS or name == "random_resized_crop":
        mask = batch()["image"][..., 0].long()
        given["mask"] = list(mask) if layout == "list" else mask
    found, result = seen([named(name)], given)
    assert not found
    one = result["image"][0] if isinstance(result["image"], list) else result["image"]
    assert one.is_meta


@pytest.mark.parametrize("name", [*STEPS, *MOVERS])
def test_a_direct_call_waits_for_copies_of_small_fields_alone(name):
    given = batch()
    if name == "random_resized_crop":
        boxes = torch.tensor([[0.0, 0, 9, 9]] * 32).split(1)
        given |= {"boxes": [*boxes], "keypoints": torch.ones(32, 2, 3)}
    with waits() as found:
        result = named(name)(on_meta(given))
    assert {kind for kind, _ in found} == {"copy"}
    moved = [result[field] for field in ("image", "label", "keypoints") if field in result]
    assert all(one.is_meta for one in [*moved, *result.get("boxes", [])])


def whole_stack():
    steps = [named(name) for name in ("random_resized_crop", "random_flip", "color_jitter")]
    steps += [step("mixup", p=0.5, called="mixup"), step("cutmix"), Normalize()]
    return [*steps, step("random_erasing", called="erase")]


def test_a_whole_stack_does_not_wait():
    found, result = seen(whole_stack(), {**batch(), "labels": torch.rand(32, 5)})
    assert not found and result["image"].shape == (32, 3, 9, 7)
    assert not seen([to_float, step("random_erasing", value=0)], batch())[0]


@pytest.mark.gpu
def test_a_card_reports_no_wait():
    host = {**batch(), "labels": torch.rand(32, 5)}
    draws = host_draws(whole_stack(), host)
    there, on_card = (
        tree_map(lambda one: one.cuda() if isinstance(one, torch.Tensor) else one, value)
        for value in (host, tree_map(torch.from_numpy, draws))
    )
    steps = whole_stack()
    apply_steps(steps, there, on_card)
    torch.cuda.set_sync_debug_mode("error")
    try:
        apply_steps(steps, there, on_card)
    finally:
        torch.cuda.set_sync_debug_mode("default")


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
def test_what_waits_is_seen(name):
    with waits() as found:
        WAITING[name](torch.ones(4, 4, device="meta"))
    assert len(found) == 1


def test_what_does_not_wait_is_not_seen():
    given = torch.ones(4, 4, device="meta")
    with waits() as found:
        given[torch.zeros(3, dtype=torch.int64, device="meta")].masked_fill_(given[:3] > 0, 2)
        torch.ones(3).to("meta", non_blocking=True)
        given.copy_(torch.ones(4, 4), non_blocking=True)
        torch.arange(4, device="meta").where(given > 0, 1)
    assert not found


def peak(name, given, **options):
    """Return the peak memory of a step in units of its images, which count themselves."""
    made = MOVERS[name]() if name in MOVERS else step(name, **options)
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
        ("color_jitter in any order", {}),
        ("random_resized_crop", {"size": 256}),
        ("random_crop", {}),
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


def test_memory_is_counted_as_long_as_a_view_of_it_is_alive():
    given = torch.empty(1000, device="meta")
    with PeakMemory(given) as memory:
        view = (given + 1)[:10]
        del view
        other = given + 2
        assert memory.peak_bytes == 8000
        third = given + other
        assert memory.peak_bytes == 12_000 and third.is_meta
