"""Augmentation stacks drawn at random, and demo scenes that say of each pixel where it was."""

from __future__ import annotations

import functools
from typing import Any, Literal

import numpy as np

from tests.transforms.cpu.numbered_scenes import scene

# Steps that move whole pixels, and those that also resize: edges stay along the axes.
EXACT = ("crop", "center", "borders", "pad", "pad_to", "crop_pad", "flip", "flip_down", "transpose",
         "turn", "d4", "own_crop", "own_center", "own_flip")  # fmt: skip
RESIZING = ("resize", "longest", "smallest", "rescale", "resized_crop", "sized_crop", "safe_crop",
            "safe_sized", "shift", "own_resize", "own_short", "own_long", "own_resized_crop",
            "own_safe_crop")  # fmt: skip
TURNING = ("rotate", "safe_rotate", "affine", "shear", "perspective")

Node = dict[str, Any]
Kind = Literal["aligned", "turned", "mixed"]


def draw_step(name: str, rng: np.random.Generator) -> Node:
    """A step with parameters of its own."""

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    height, width = between(36, 120), between(36, 120)
    size = {"height": height, "width": width}
    share = round(float(rng.uniform(0.05, 0.35)), 3)
    angle = round(float(rng.uniform(5, 90)), 1)
    cropped: Node = {**size, "pad_if_needed": True, "pad_position": "random"}
    own = {
        "own_crop": ("random_crop", {"size": [height, width], "fill": 0}),
        "own_center": ("center_crop", {"size": [height, width], "fill": 0}),
        "own_flip": ("horizontal_flip", {"p": 1.0}),
        "own_resize": ("resize", {"size": [height, width]}),
        "own_short": ("resize", {"short_side": height}),
        "own_long": ("resize", {"long_side": height, "interpolation": "linear"}),
        "own_resized_crop": ("random_resized_crop", {"size": [height, width], "scale": [0.3, 1]}),
        "own_safe_crop": ("box_safe_crop", {"size": [height, width]}),
    }
    if name in own:
        return {"_target_": f"transform/{own[name][0]}", **own[name][1]}
    transform, options = {
        "crop": ("RandomCrop", cropped),
        "center": ("CenterCrop", {**size, "pad_if_needed": True}),
        "borders": (
            "RandomCropFromBorders",
            {f"crop_{side}": share for side in ("left", "right", "top", "bottom")},
        ),
        "pad": ("Pad", {"padding": [between(0, 20) for _ in range(4)]}),
        "pad_to": ("PadIfNeeded", {"min_height": between(60, 140), "min_width": between(60, 140)}),
        "crop_pad": ("CropAndPad", {"px": [between(-12, 13) for _ in range(4)],
                                    "keep_size": False}),
        "flip": ("HorizontalFlip", {}),
        "flip_down": ("VerticalFlip", {}),
        "transpose": ("Transpose", {}),
        "turn": ("RandomRotate90", {}),
        "d4": ("D4", {}),
        "resize": ("Resize", size),
        "longest": ("LongestMaxSize", {"max_size": height}),
        "smallest": ("SmallestMaxSize", {"max_size": height}),
        "rescale": ("RandomScale", {"scale_limit": [-0.4, 0.5]}),
        "resized_crop": ("RandomResizedCrop", {"size": [height, width], "scale": [0.3, 1.0]}),
        "sized_crop": ("RandomSizedCrop", {"min_max_height": [20, 30], "size": [height, width]}),
        "safe_crop": ("BBoxSafeRandomCrop", {}),
        "safe_sized": ("RandomSizedBBoxSafeCrop", size),
        "shift": ("Affine", {"scale": [0.6, 1.4], "translate_px": [-15, 15]}),
        "rotate": ("Rotate", {"limit": [-angle, angle]}),
        "safe_rotate": ("SafeRotate", {"limit": [-angle, angle]}),
        "affine": ("Affine", {"rotate": [-angle, angle], "scale": [0.7, 1.3],
                              "translate_percent": [-0.1, 0.1]}),
        "shear": ("Affine", {"shear": [-20, 20]}),
        "perspective": ("Perspective", {"scale": [0.05, 0.15],
                                        "keep_size": bool(rng.integers(2))}),
    }[name]  # fmt: skip
    return {"_target_": f"albumentations.{transform}", **options, "p": 1.0}


def draw_stack(rng: np.random.Generator, kind: Kind) -> dict[str, Node]:
    """One to four steps.

    Of an ``aligned`` stack none turns, and at most one resizes: a second one would round edges
    again. Of a ``turned`` one, one turns and none else takes new samples. ``mixed``: any.
    """
    count = int(rng.integers(1, 5))
    place = int(rng.integers(count))
    if kind == "mixed":
        names = rng.choice(EXACT + RESIZING + TURNING, count).tolist()
    else:
        names = rng.choice(EXACT, count).tolist()
        if kind == "turned":
            names[place] = str(rng.choice(TURNING))
        elif rng.random() < 0.7:
            names[place] = str(rng.choice(RESIZING))
    return {f"{number} {name}": draw_step(name, rng) for number, name in enumerate(names)}


@functools.cache
def traced_scene(number: int) -> dict[str, Any]:
    """A demo image that says where it comes from.

    ``image`` holds at each pixel its own column, its own row, and 255. In ``mask``, bit i is set
    where shape i is, and bit 3 + i in all of its box.
    """
    drawn = scene(number)
    shapes = drawn["mask"] % 100
    height, width = shapes.shape
    rows, columns = np.mgrid[:height, :width]
    bits = np.zeros((height, width), np.uint8)
    for row, (left, top, right, bottom) in enumerate(drawn["boxes"].astype(int)):
        bits[shapes == row + 1] |= 1 << row
        bits[top:bottom, left:right] |= 8 << row
    return {
        "image": np.stack([columns, rows, np.full_like(rows, 255)], 2).astype(np.uint8),
        "mask": bits,
        "boxes": drawn["boxes"],
        "box_labels": np.arange(len(drawn["boxes"])),
        "keypoints": drawn["keypoints"],
        "key": str(number),
    }
