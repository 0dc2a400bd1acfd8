"""Window steps give the pixels of the whole image, and decode only what they need."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest

from penstock import compose
from penstock.core.rng import KeyedRng
from penstock.core.sample import PendingImage, Record, RecordError, Sample
from penstock.transforms.cpu.crops import BoxSafeCrop, RandomResizedCrop
from penstock.transforms.cpu.resize_and_flip import HorizontalFlip, Resize
from penstock.transforms.cpu.stack import Stack, build_stack
from penstock.transforms.cpu.targets import BoxSettings, KeypointSettings
from penstock.transforms.decode.image import ImageDecoder
from penstock.transforms.decode.image.jpeg_tiles import write_tiled
from penstock.transforms.decode.scaled import ScaledDecoder
from tests.building import build_step
from tests.contracts.equality import assert_same, untouched_global_states
from tests.contracts.transform import check_transform
from tests.photographs import photograph, scene, turned

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
    "resized small": [{**RESIZED, "scale": [0.01, 0.1]}, FLIP],
    "resized ratio out of reach": [{**RESIZED, "scale": [1, 1], "ratio": [4, 5]}],
    **{
        f"resized {by}": [{**RESIZED, "interpolation": by}, FLIP]
        for by in ("area", "linear", "cubic", "nearest")
    },
    "random": [step("random_crop", size=[30, 33]), FLIP],
    "random padded": [step("random_crop", size=[150, 90], fill=9), FLIP],
    "padded and resized": [step("center_crop", size=400, fill=7), step("resize", size=64), FLIP],
    "evaluation": [SHORT, CENTER],
    **{
        f"evaluation {by}": [{**SHORT, "interpolation": by}, CENTER, FLIP]
        for by in ("linear", "cubic", "nearest")
    },
    "flip first": [FLIP, {**SHORT, "short_side": 99}, step("random_crop", size=50), FLIP, CENTER],
    "long side": [step("resize", long_side=80), step("random_crop", size=40), FLIP],
    "crop of a crop": [step("random_crop", size=[80, 90]), step("center_crop", size=[40, 30])],
    "part of a crop": [step("random_crop", size=80), SHORT, step("center_crop", size=20)],
    "resized twice": [RESIZED, FLIP, step("resize", size=[30, 40]), step("random_crop", size=20)],
}
STACKS["flip first"][-1] = step("center_crop", size=20)
FILES = {
    "420": photograph(97, 131),
    "422": photograph(160, 100, sampling="422"),
    "444": photograph(90, 130, sampling="444"),
    "grey": photograph(120, 131, sampling="grey"),
    "restarts": photograph(128, 160, interval=5),
    "tiled": write_tiled(scene(200, 300), quality=95),
    "progressive": photograph(97, 131, progressive=True),
}


def stack(*steps: Node, **more: Any) -> Stack:
    nodes = {f"step {i}": node for i, node in enumerate(steps)}
    return build_stack(nodes, build_step=build_step, **more)


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
    assert transform.whole_because() is None
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
        assert difference.max() <= (0 if exact else 4) or name == "flip first nearest"
        assert np.array_equal(fused["mask"], alone["mask"]) or name == "flip first"
        assert np.abs(fused["boxes"] - alone["boxes"]).max(initial=0) < 1e-3
        assert np.abs(fused["keypoints"] - alone["keypoints"]).max() < 1.01


@pytest.mark.parametrize("interpolation", ["area", "linear", "cubic"])
def test_a_resize_and_a_crop_are_those_of_opencv(interpolation):
    flag = {"area": cv2.INTER_AREA, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}
    rng = np.random.default_rng(0)
    for _ in range(20):
        height, width = rng.integers(60, 400, 2).tolist()
        side = int(rng.integers(10, 60))
        rows, columns = rng.integers(1, side + 1, 2).tolist()
        image = scene(height, width)
        scale = side / min(height, width)
        size = round(height * scale), round(width * scale)
        resized = cv2.resize(image, size[::-1], interpolation=flag[interpolation])
        top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
        nodes = (
            step("resize", short_side=side, interpolation=interpolation),
            step("center_crop", size=[rows, columns]),
        )
        expected = resized[top : top + rows, left : left + columns]
        into = np.zeros_like(expected)
        found = stack(*nodes)({"image": image}, KeyedRng().at(0, 0, 0), into=into)["image"]
        assert found is into and np.array_equal(found, expected)


def test_area_is_linear_where_a_side_grows():
    image = scene(20, 90)
    found = stack(step("resize", size=[40, 40]))({"image": image}, KeyedRng().at(0, 0, 0))
    assert np.array_equal(found["image"], cv2.resize(image, (40, 40)))


@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_other_modes_too(mode):
    for name in ("resized", "evaluation", "resized nearest", "random padded"):
        transform = stack(*STACKS[name])
        for position, data in enumerate(FILES.values()):
            assert_same(*both(transform, record(data), position, mode=mode))


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
    fields: dict[str, Any] = {
        "boxes": np.array([[3, 4, 50, 60]], np.float32),
        "keypoints": np.array([[20, 30, 2]], np.float32),
        "mask": (scene(200, 300)[..., 0] > 99).astype(np.uint8),
    }
    for nodes in ([RESIZED, FLIP, COLOR, HOLE], [step("box_safe_crop", size=32), FLIP]):
        for name, value in fields.items():
            for position in range(4):
                given = record(FILES["tiled"], **{name: value})
                assert_same(*both(stack(*nodes), given, position))


def test_any_mix_of_sizes_samplings_and_crops():
    rng = np.random.default_rng(11)
    for trial in range(60):
        height, width = rng.integers(20, 260, 2).tolist()
        sampling = ["420", "422", "440", "444", "411", "grey"][trial % 6]
        data = photograph(height, width, sampling=sampling, interval=int(rng.integers(0, 4)))
        if trial % 4 == 0:
            data = write_tiled(scene(height, width), quality=int(rng.integers(40, 100)))
        low = float(rng.uniform(0.02, 0.9))
        crop = {**RESIZED, "size": rng.integers(4, 90, 2).tolist(), "scale": [low, 1.0]}
        crop["interpolation"] = ["area", "linear", "cubic", "nearest"][trial % 4]
        assert_same(*both(stack(crop, FLIP), record(data), trial))


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), "empty"),
        ((FLIP, COLOR, RESIZED), "step 0"),
        ((COLOR, RESIZED), "step 0"),
        ((SHORT,), "step 0"),
    ],
)
def test_other_stacks_say_why_they_need_the_whole_image(steps, reason):
    transform = stack(*steps)
    assert reason in (transform.whole_because() or "")
    assert not transform.capabilities.crops_first
    assert_same(*both(transform, record(FILES["420"]), 0))


@pytest.mark.parametrize("name", ["resized", "evaluation", "random padded", "resized twice"])
def test_contract(name):
    given = [
        {"image": scene(97, 131), "key": "a", "index": 0},
        {"image": scene(120, 70), "key": "b", "index": 1},
    ]
    check_transform(stack(*STACKS[name]), given, draws=name != "evaluation")
    check_transform(RandomResizedCrop(size=8), given)


def test_threads_pickles_and_global_states():
    transform, decoder = stack(RESIZED, FLIP), ImageDecoder()

    def work(transform: Stack, position: int) -> Sample:
        data = list(FILES.values())[position % len(FILES)]
        return transform(decoder.defer(record(data)), KeyedRng().at(0, 0, position))

    with untouched_global_states():
        expected = [work(transform, position) for position in range(40)]
    again = pickle.loads(pickle.dumps(transform))
    assert_same([work(again, position) for position in range(40)], expected)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert_same(list(pool.map(partial(work, transform), range(40))), expected)


def asked_of(nodes: list[Node], **fields: Any) -> list[Any]:
    """The boxes that a stack decodes of an image of 200 x 300 pixels."""
    asked: list[Any] = []

    def decode(box):
        asked.append(box)
        return scene(200, 300).copy(), 0, 0

    given = {"image": PendingImage((200, 300, 3), decode), **fields}
    stack(*nodes)(given, KeyedRng().at(0, 0, 0))
    return asked


def test_only_the_crop_is_decoded():
    crop = step("center_crop", size=[64, 48])
    assert asked_of([crop]) == [(126, 68, 174, 132)]
    assert asked_of([crop, FLIP, step("resize", size=32)]) == [(126, 68, 174, 132)]
    assert asked_of([crop, COLOR]) == [(126, 68, 174, 132)]
    assert asked_of([FLIP, crop, step("center_crop", size=10)]) == [(145, 95, 155, 105)]
    padded = step("center_crop", size=400, fill=0)
    assert asked_of([padded]) == [(0, 0, 300, 200)]
    half = [step("resize", short_side=100), step("center_crop", size=[20, 10])]
    assert asked_of(half) == [(138, 78, 162, 122)], "with 2 pixels around"
    boxes = np.array([[100, 50, 120, 70]], np.float32)
    ((left, top, right, bottom),) = asked_of(
        [step("box_safe_crop", size=32)], boxes=boxes, box_labels=np.array([1])
    )
    assert 0 <= left <= 100 and 0 <= top <= 50 and 120 <= right <= 300 and 70 <= bottom <= 200


def test_a_scaled_decoder_gives_the_pixels_of_its_smaller_image():
    nodes = [SHORT, step("center_crop", size=56)]
    for height, width in [(301, 401), (520, 700), (400, 260), (130, 900)]:
        data = write_tiled(scene(height, width), quality=95)
        pending = ScaledDecoder().defer(record(data))["image"]
        scale = 64 / min(height, width)
        rows, columns = round(height * scale), round(width * scale)
        factor = pending.factor_for((0, 0, width, height), (rows, columns))
        assert factor == {130: 2, 520: 8}.get(min(height, width), 4)
        found = stack(*nodes)({"image": pending}, KeyedRng().at(0, 0, 0))["image"]
        whole, _, _ = pending.around(None, factor)
        scales = columns * factor / width, rows * factor / height
        small = cv2.resize(whole, None, fx=scales[0], fy=scales[1], interpolation=cv2.INTER_AREA)
        top, left = (rows - 56) // 2, (columns - 56) // 2
        assert np.array_equal(found, small[top : top + 56, left : left + 56])
        exact = both(stack(*nodes), record(data), 0)[0]["image"]
        assert np.abs(found.astype(int) - exact).mean() < 7
    upright = turned(300, 500, 6)
    given = ScaledDecoder().defer(record(upright))
    found = stack(*nodes)(given, KeyedRng().at(0, 0, 0))["image"]
    exact = both(stack(*nodes), record(upright), 0)[0]["image"]
    assert np.abs(found.astype(int) - exact).mean() < 6


def test_crops_cover_their_ranges():
    crop = RandomResizedCrop(size=8, scale=[0.2, 0.9], ratio=[0.5, 2.0])
    shares, ratios, places = [], [], []
    for position in range(400):
        box = crop.window((300, 400), KeyedRng().at(0, 0, position), None).box
        width, height = box[2] - box[0], box[3] - box[1]
        shares.append(width * height / 120_000)
        ratios.append(width / height)
        places.append((box[0] == 0 or box[2] == 400, box[0] / (400 - width + 1e-9)))
        assert 0 <= box[0] < box[2] <= 400 and 0 <= box[1] < box[3] <= 300
    assert 0.19 < min(shares) < 0.25 and 0.8 < max(shares) < 0.91
    assert 0.48 < min(ratios) < 0.6 and 1.7 < max(ratios) < 2.02
    assert abs(np.mean([place for _, place in places]) - 0.5) < 0.05
    ends = {int(HorizontalFlip(p=p).window((3, 3), KeyedRng().at(0, 0, 0), None).mirrored)
            for p in (0.0, 1.0)}  # fmt: skip
    assert ends == {0, 1}


def test_a_random_crop_reaches_every_place():
    image = np.arange(5 * 6, dtype=np.uint8).reshape(5, 6, 1)
    transform = stack(step("random_crop", size=[3, 4]))
    seen = {
        int(transform({"image": image}, KeyedRng().at(0, 0, position))["image"][0, 0, 0])
        for position in range(200)
    }
    assert seen == {0, 1, 2, 6, 7, 8, 12, 13, 14}


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


def test_padding_is_centred_and_fills_image_and_mask():
    given = {
        "image": np.full((4, 6, 3), 200, np.uint8),
        "mask": np.ones((4, 6), np.uint8),
        "box_masks": np.ones((1, 4, 6), np.uint8),
        "boxes": np.array([[-3, 0, 6, 4]], np.float32),
        "box_labels": np.array([1]),
        "keypoints": np.array([[0, 0, 2], [-1, 0, 2]], np.float32),
    }
    crop = step("center_crop", size=[8, 4], fill=9, mask_fill=255)
    result = stack(crop)(given, KeyedRng().at(0, 0, 0))
    rows = [9, 9, 200, 200, 200, 200, 9, 9]
    assert (result["image"] == np.array(rows, np.uint8)[:, None, None]).all()
    assert result["mask"][:, 0].tolist() == [255, 255, 1, 1, 1, 1, 255, 255]
    assert result["box_masks"][0, :, 0].tolist() == [0, 0, 1, 1, 1, 1, 0, 0]
    assert result["boxes"].tolist() == [[0, 2, 4, 6]]
    assert result["keypoints"].tolist() == [[-1, 2, 0], [-2, 2, 0]]


def test_limits_apply_to_the_result_of_a_window():
    given = {
        "image": np.zeros((40, 80, 3), np.uint8),
        "boxes": np.array([[0, 0, 24, 10], [30, 10, 34, 14], [70, 0, 80, 9]], np.float32),
        "box_labels": np.arange(3),
    }
    crop = step("center_crop", size=40)  # from column 20 on
    kept = [
        stack(*nodes, boxes=limits)(given, KeyedRng().at(0, 0, 0))["box_labels"].tolist()
        for nodes, limits in [
            ([crop], None),
            ([crop], BoxSettings(min_visibility=0.2)),
            ([crop], BoxSettings(min_area=17)),
            ([crop, step("resize", size=80)], BoxSettings(min_area=17)),
        ]
    ]
    assert kept == [[0, 1], [1], [0], [0, 1]]


def test_a_mirror_moves_boxes_and_swaps_keypoints():
    settings = KeypointSettings(swaps=[[0, 1]])
    given = {
        "image": np.zeros((4, 10, 3), np.uint8),
        "keypoints": np.array([[2, 1, 2], [7, 1, 1]], np.float32),
        "boxes": np.array([[1, 0, 4, 2]], np.float32),
    }
    flip = step("horizontal_flip", p=1.0)
    once = stack(flip, keypoints=settings)(given, KeyedRng().at(0, 0, 0))
    assert once["keypoints"].tolist() == [[2, 1, 1], [7, 1, 2]]
    assert once["boxes"].tolist() == [[6, 0, 9, 2]]
    twice = stack(flip, flip, keypoints=settings)(given, KeyedRng().at(0, 0, 0))
    assert twice["keypoints"].tolist() == given["keypoints"].tolist()


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


@pytest.mark.parametrize(
    ("node", "key"),
    [
        (step("random_resized_crop", size=8, scale=[0.5, 0.1]), "scale"),
        (step("random_resized_crop", size=8, ratio=[2, 1]), "ratio"),
        (step("resize"), "no size"),
        (step("resize", size=8, short_side=9), "short_side"),
        (step("color_jitter", brightness=-0.1), "brightness"),
        (step("color_jitter", contrast=[2, 1]), "contrast"),
        (step("color_jitter", hue=0.6), "hue"),
        (step("color_jitter", hue=[-0.6, 0.1]), "hue"),
    ],
)
def test_wrong_arguments_name_their_key(node, key):
    with pytest.raises(ValueError, match=key):
        stack(node)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.crop.size", "[8,8,3]"),
        ("train.crop.size", "[8,0]"),
        ("train.crop.scale", "[0.5,1.1]"),
        ("train.crop.scale", "[0.0,1.0]"),
        ("train.crop.ratio", "[0.5]"),
        ("train.crop.ratio", "[-1,2]"),
        ("train.crop.interpolation", "lanczos"),
        ("eval.crop.size", "0"),
        ("eval.crop.fill", "-1"),
        ("eval.resize.short_side", "0"),
        ("train.flip.p", "1.1"),
    ],
)
def test_values_of_another_kind_are_errors_of_the_config(key, value):
    with pytest.raises(ValueError, match=f"augment.{key}"):
        compose(["augment=imagenet", f"augment.{key}={value}"])


def test_resize_keeps_the_ratio_of_a_side():
    sizes = [
        Resize(**given).window((200, 301), KeyedRng().at(0, 0, 0), None).shape
        for given in ({"size": 9}, {"size": [9, 8]}, {"short_side": 100}, {"long_side": 100})
    ]
    assert sizes == [(9, 9), (9, 8), (100, 150), (66, 100)]
