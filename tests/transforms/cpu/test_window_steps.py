"""Window steps give the pixels of the whole image, and decode only what they need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from penstock.core.rng import KeyedRng
from penstock.core.sample import PendingImage, Record, RecordError, Sample
from penstock.transforms.cpu.geometry import BoxSafeCrop, RandomResizedCrop, Resize
from penstock.transforms.cpu.stack import Stack
from penstock.transforms.cpu.targets import BoxSettings
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from tests.building import build_step
from tests.contracts.equality import assert_same
from tests.photographs import photograph, scene

Node = dict[str, Any]


def step(name: str, **options: Any) -> Node:
    return {"_target_": f"transform/{name}", **options}


RESIZED = step("random_resized_crop", size=[40, 56])
FLIP = step("horizontal_flip")
SHORT = step("resize", short_side=64)
CENTER = step("center_crop", size=[48, 56])
COLOR = {"_target_": "albumentations.ColorJitter", "p": 0.8}
HOLE = {"_target_": "albumentations.CoarseDropout", "p": 0.5}
STACKS: dict[str, list[Node]] = {
    "resized": [RESIZED, FLIP],
    "resized ratio out of reach": [{**RESIZED, "scale": [1, 1], "ratio": [4, 5]}],
    **{f"resized {by}": [{**RESIZED, "interpolation": by}, FLIP] for by in ("area", "linear")},
    "random": [step("random_crop", size=[30, 33]), FLIP],
    "evaluation": [SHORT, CENTER],
    "evaluation linear": [{**SHORT, "interpolation": "linear"}, CENTER, FLIP],
    "flip first": [FLIP, SHORT, step("random_crop", size=50), FLIP, step("center_crop", size=20)],
    "crop of a crop": [step("random_crop", size=[80, 90]), step("center_crop", size=[40, 30])],
    "resized twice": [RESIZED, FLIP, step("resize", size=[30, 40]), step("random_crop", size=20)],
}
FILES = {
    "420": photograph(97, 131),
    "grey": photograph(120, 131, sampling="grey"),
    "tiled": write_tiled(scene(200, 300), quality=95),
    "progressive": photograph(97, 131, progressive=True),
}


def stack(*steps: Node, **more: Any) -> Stack:
    nodes = {f"step {i}": node for i, node in enumerate(steps)}
    return Stack(nodes, build_step=build_step, **more)


def record(data: bytes, **fields: object) -> Record:
    return Record(3, "a.jpg", {"image": data, "label": 1, **fields})


def both(steps: Stack, given: Record, position: int, **options: Any) -> tuple[Sample, Sample]:
    """The sample of a deferred and of a whole decoding; the draws that follow agree too."""
    decoder, samples = ImageDecoder(**options), []
    for decode in (decoder.defer, decoder):
        rng = KeyedRng().at(1, 2, position)
        samples.append(steps(decode(given), rng))
        samples[-1]["next draw"] = rng.random()
    return samples[0], samples[1]


def one_by_one(nodes: list[Node], sample: Sample, position: int) -> Sample:
    """The steps without any fusion: each makes its own pixels."""
    rng = KeyedRng().at(1, 2, position)
    for node in nodes:
        sample = build_step(node)(sample, rng)
    return sample


@pytest.mark.parametrize("name", STACKS)
def test_a_part_gives_every_pixel_of_the_whole_image(name):
    transform = stack(*STACKS[name])
    for data in FILES.values():
        for position in range(12):
            part, whole = both(transform, record(data), position)
            assert_same(part, whole)
            assert part["image"].flags.c_contiguous and part["image"].flags.writeable


@pytest.mark.parametrize("name", STACKS)
def test_steps_in_one_window_are_the_steps_one_by_one(name):
    transform = stack(*STACKS[name])
    mask = np.arange(200 * 300).reshape(200, 300)
    given = {
        "image": scene(200, 300),
        "mask": mask,
        "boxes": np.array([[3, 4, 250, 160], [100, 60, 180, 150]], np.float32),
        "box_masks": np.ones((2, 200, 300), np.uint8),
        "keypoints": np.array([[20, 30, 2], [150, 100, 1]], np.float32),
    }
    exact = not any(node["_target_"].endswith("resize") for node in STACKS[name])
    for position in range(12):
        fused = transform(dict(given), KeyedRng().at(1, 2, position))
        alone = one_by_one(STACKS[name], dict(given), position)
        assert fused["image"].shape == alone["image"].shape
        difference = np.abs(fused["image"].astype(int) - alone["image"])
        # Before a resize, a mirror may round the other way.
        assert difference.max() <= (0 if exact else 4)
        assert np.array_equal(fused["mask"], alone["mask"]) or name == "flip first"
        assert np.abs(fused["boxes"] - alone["boxes"]).max(initial=0) < 1e-3
        assert np.abs(fused["keypoints"] - alone["keypoints"]).max() < 1.01


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("channels", [1, 3, 7])
def test_other_types_of_pixels_and_any_number_of_channels(dtype, channels):
    image = np.random.default_rng(1).integers(0, 256, (90, 100, channels)).astype(dtype)
    for name in STACKS:
        result = stack(*STACKS[name])({"image": image}, KeyedRng().at(0, 0, 0))["image"]
        assert result.dtype == dtype and result.shape[2] == channels


def test_library_steps_after_a_crop_and_every_other_field():
    strong = stack(RESIZED, FLIP, step("color_jitter", p=0.7), COLOR, HOLE)
    assert strong.whole_because() is None
    for position in range(20):
        assert_same(*both(strong, record(FILES["tiled"]), position))
    given = record(FILES["tiled"], boxes=np.array([[3, 4, 50, 60]], np.float32))
    for position in range(4):
        assert_same(*both(stack(step("box_safe_crop", size=32), FLIP), given, position))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), "empty"),
        ((COLOR, RESIZED), "step 0"),
        ((FLIP, SHORT, CENTER), "step 0"),
    ],
)
def test_other_stacks_say_why_they_need_the_whole_image(steps, reason):
    transform = stack(*steps)
    assert reason in (transform.whole_because() or "")
    assert not transform.crops_first
    assert_same(*both(transform, record(FILES["420"]), 0))


def asked_of(nodes: list[Node]) -> list[Any]:
    """The boxes that a stack decodes of an image of 200 x 300 pixels."""
    asked: list[Any] = []

    def decode(box):
        asked.append(box)
        return scene(200, 300).copy(), 0, 0

    stack(*nodes)({"image": PendingImage((200, 300, 3), decode)}, KeyedRng().at(0, 0, 0))
    return asked


def test_only_the_crop_is_decoded():
    crop = step("center_crop", size=[64, 48])
    assert asked_of([crop]) == [(126, 68, 174, 132)]
    assert asked_of([crop, FLIP, step("resize", size=32), COLOR]) == [(126, 68, 174, 132)]
    assert asked_of([FLIP, crop, step("center_crop", size=10)]) == [(145, 95, 155, 105)]


def test_crops_cover_their_ranges():
    crop = RandomResizedCrop(size=8, scale=[0.2, 0.9], ratio=[0.5, 2.0])
    boxes = [crop.window((300, 400), KeyedRng().at(0, 0, n), None).box for n in range(400)]
    left, top, right, bottom = np.array(boxes).T
    shares, ratios = (right - left) * (bottom - top) / 120_000, (right - left) / (bottom - top)
    assert 0.19 < min(shares) < 0.25 and 0.8 < max(shares) < 0.91
    assert 0.48 < min(ratios) < 0.6 and 1.7 < max(ratios) < 2.02
    assert min(left) == 0 == min(top) and max(right) == 400 and max(bottom) == 300


def test_a_box_safe_crop_keeps_boxes_whole_and_ignores_boxes_without_an_area():
    boxes = np.array([[30.5, 10, 50, 20.2], [40, 15, 60, 28], [5, 5, 5, 9], [np.nan, 1, 2, 3]])
    crop = BoxSafeCrop(size=[10, 20])
    lefts = set()
    for position in range(50):
        box = crop.window((40, 80), KeyedRng().at(0, 0, position), boxes).box
        lefts.add(box[0])
        assert 0 <= box[0] <= 30 and 0 <= box[1] <= 10 and 60 <= box[2] <= 80 and 28 <= box[3] <= 40
    assert len(lefts) > 15
    for none in (None, boxes[2:]):
        assert crop.window((40, 80), KeyedRng().at(0, 0, 0), none).box == (0, 0, 80, 40)


@pytest.mark.parametrize("split", [False, True])
def test_boxes_with_masks_are_around_the_rest_of_their_mask(split):
    masks = np.zeros((4, 40, 80), np.uint8)
    masks[0, 4:20, 30:50] = 1  # inside
    masks[1] = np.tri(40, 80, -8)  # cut to a corner
    masks[2, 0:8, 0:8] = masks[2, 30:32, 0:24] = 1  # two of its rows reach into the crop
    masks[3, 0:4, 0:40] = np.tri(4, 40)  # its box reaches into the crop, its mask does not
    boxes = np.array([[30, 4, 50, 20], [0, 9, 31, 40], [0, 0, 24, 32], [0, 0, 40, 4]], np.float32)
    given = {"image": np.zeros((40, 80, 3), np.uint8), "boxes": boxes, "box_masks": masks}
    nodes = [step("resize", short_side=20), step("center_crop", size=20)]  # from column 10 on
    for limits, expected in (
        (BoxSettings(), [[5, 2, 15, 10], [0, 14, 6, 20], [0, 15, 2, 16]]),
        (BoxSettings(min_area=3), [[5, 2, 15, 10], [0, 14, 6, 20]]),
        (BoxSettings(min_visibility=0.2), [[5, 2, 15, 10], [0, 14, 6, 20]]),
    ):
        result = given
        for part in [nodes[:1], nodes[1:]] if split else [nodes]:
            result = stack(*part, boxes=limits)(result, KeyedRng().at(0, 0, 0))
        assert result["boxes"].tolist() == expected and len(result["box_masks"]) == len(expected)


def test_damage_arrives_as_damage_and_a_mistake_with_its_step():
    rng = KeyedRng().at(0, 0, 0)
    damaged = FILES["420"][:2000]
    with pytest.raises(RecordError, match="JPEG"):
        stack(RESIZED)(ImageDecoder().defer(record(damaged)), rng)
    with pytest.raises(ValueError, match="999 x 9") as raised:
        stack(step("center_crop", size=[999, 9]))(ImageDecoder().defer(record(FILES["420"])), rng)
    assert raised.value.__notes__ == ["in augmentation step 'step 0' (transform/center_crop)"]


def test_images_that_no_step_can_take():
    rng = KeyedRng().at(0, 0, 0)
    for nodes in ((RESIZED, COLOR), (COLOR,), (step("color_jitter", p=1.0),)):
        with pytest.raises(ValueError, match="label, row"):
            stack(*nodes)({"label": 1, "row": 2}, rng)
        with pytest.raises(ValueError, match="dataset/decode=image"):
            stack(*nodes)({"image": FILES["420"]}, rng)
    with pytest.raises(ValueError, match=r"\[9, 9\]"):
        stack(RESIZED)({"image": np.zeros((9, 9), np.uint8)}, rng)
    with pytest.raises(ValueError, match=r"mask.*\[8, 9\]"):
        given = {"image": np.zeros((9, 9, 3), np.uint8), "mask": np.zeros((8, 9), np.uint8)}
        stack(RESIZED)(given, rng)


def test_resize_keeps_the_ratio_of_a_side():
    sizes = [
        Resize(**given).window((200, 301), KeyedRng().at(0, 0, 0), None).size
        for given in ({"size": 9}, {"size": [9, 8]}, {"short_side": 100}, {"long_side": 100})
    ]
    assert sizes == [(9, 9), (9, 8), (100, 150), (66, 100)]
    for given in ({}, {"size": 8, "short_side": 9}):
        with pytest.raises(ValueError, match="give one of them"):
            Resize(**given)
    with pytest.raises(ValueError, match="scale is"):
        RandomResizedCrop(size=8, scale=[0.5, 0.1])
