"""Generate the demo set: coloured shapes as JPEG files, with exact annotations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from penstock.core.files import write_lines
from penstock.datasets.demo.folder import own_folder, random
from penstock.datasets.records.labels import CLASSES_NAME

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
KEYPOINTS = ("centre", "top", "right", "bottom", "left")
COUNTS = {"train": 3000, "val": 600}
_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawn image, RGB [H, W, 3], and its annotations; the first shape has the label."""

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    label: int
    boxes: list[list[int]]
    box_labels: list[int]
    keypoints: list[list[int]]
    shapes: NDArray[np.bool_]
    colour: list[int]


def demo_path(storage_name: str, data_dir: str | Path) -> Path:
    """Return the demo set's folder for a storage, generated and packed if it is missing."""
    from penstock.datasets.demo.forms import demo_forms, pack_demo

    if storage_name != "image_folder" and storage_name not in demo_forms():
        known = ", ".join(sorted({"image_folder", *demo_forms()}))
        raise ValueError(f"path=demo: not made for the storage {storage_name!r}, only for {known}")
    with own_folder(Path(data_dir) / "demo", generate) as root:
        if storage_name == "image_folder":
            return root / "images"
        for split in COUNTS:
            pack_demo(root, storage_name, split, CLASSES)
    return root / storage_name


def generate(root: Path) -> None:
    """Draw the images of every split below `root`, with masks and annotations."""
    for split_id, (split, count) in enumerate(COUNTS.items()):
        images, objects = [], []
        rows, colours = ["image,label,xmin,ymin,xmax,ymax"], ["image,red,green,blue"]
        for number in range(count):
            scene = draw_scene(split_id, number)
            key = f"{CLASSES[scene.label]}/{number:05d}.jpg"
            jpeg, png = root / "images" / split / key, root / "masks" / split / f"{key[:-4]}.png"
            jpeg.parent.mkdir(parents=True, exist_ok=True)
            png.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(jpeg), scene.image[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])
            cv2.imwrite(str(png), scene.mask, [cv2.IMWRITE_PNG_COMPRESSION, 1])
            height, width = scene.mask.shape
            images.append({"id": number, "file_name": key, "height": height, "width": width})
            objects += [{"image_id": number, **each} for each in _objects(scene)]
            for box, kind in zip(scene.boxes, scene.box_labels, strict=True):
                rows.append(f"{key},{CLASSES[kind]},{','.join(map(str, box))}")
            colours.append(f"{key},{','.join(map(str, scene.colour))}")
        kinds = [{"id": 1 + i, "name": n, "keypoints": KEYPOINTS} for i, n in enumerate(CLASSES)]
        about = {"images": images, "annotations": objects, "categories": kinds}
        (root / "annotations").mkdir(exist_ok=True)
        write_lines(root / "annotations" / f"{split}.json", [json.dumps(about)])
        write_lines(root / "annotations" / f"{split}.csv", rows)
        write_lines(root / "annotations" / f"{split}_colours.csv", colours)
        write_lines(root / "masks" / split / CLASSES_NAME, ["background", *CLASSES])


def _objects(scene: Scene) -> list[dict[str, Any]]:
    """Return the shapes of an image as COCO annotations; the first, the largest, has keypoints."""
    rows = zip(scene.shapes, scene.boxes, scene.box_labels, strict=True)
    objects: list[dict[str, Any]] = [
        {
            "category_id": 1 + kind,
            "bbox": [left, top, right - left, bottom - top],
            "segmentation": {"size": list(shape.shape), "counts": run_lengths(shape)},
        }
        for shape, (left, top, right, bottom), kind in rows
    ]
    objects[0]["keypoints"] = np.ravel(scene.keypoints).tolist()
    return objects


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Count the pixels of each run, by columns, background first, as COCO does."""
    flat = mask.T.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs: list[int] = np.diff([0, *changes, flat.size]).tolist()
    return [0, *runs] if flat[0] else runs


def draw_scene(split_id: int, number: int) -> Scene:
    """Draw an image by its number: a large shape and up to two small ones on a texture."""
    rng = random(_SEED, split_id, number)
    label = number % len(CLASSES)
    height, width = rng.integers(64, 113, 2).tolist()

    def place(radius: int) -> tuple[int, int]:
        """Return a centre, x and y, at which a circle stays inside the image."""
        x, y = (int(rng.integers(radius + 1, side - radius - 1)) for side in (width, height))
        return x, y

    image = _background(rng, height, width)
    side = min(height, width)
    radius = int(rng.integers(side * 30 // 100, side * 46 // 100))
    places = [(label, place(radius), radius)]
    for _ in range(int(rng.integers(0, 3))):
        small = int(rng.integers(5, 8))
        x, y = place(small)
        # A shape stays inside its circle, and disjoint circles hide nothing.
        if all(np.hypot(x - a, y - b) > small + r + 2 for _, (a, b), r in places):
            places.append((int(rng.integers(len(CLASSES))), (x, y), small))
    mask, shapes, colours = np.zeros((height, width), np.uint8), [], []
    for kind, centre, size in places:
        shapes.append(_shape(kind, centre, size, rng.uniform(-0.4, 0.4), height, width))
        colours.append(rng.integers(100, 256, 3))  # brighter than every background
        colours[-1][rng.integers(3)] = 240
        image[shapes[-1]] = colours[-1]
        mask[shapes[-1]] = kind + 1
    spans = [cv2.boundingRect(shape.astype(np.uint8)) for shape in shapes]
    boxes = [[x, y, x + width, y + height] for x, y, width, height in spans]
    points = np.argwhere(shapes[0])[:, ::-1]
    ends = [*points.argmin(0)[::-1], *points.argmax(0)]
    top, left, right, bottom = points[ends].tolist()  # the first of equal pixels
    keypoints = [[*point, 2] for point in (places[0][1], top, right, bottom, left)]
    pixels = np.clip(image + rng.integers(-12, 13, image.shape), 0, 255).astype(np.uint8)
    kinds = [kind for kind, _, _ in places]
    colour = colours[0].tolist()
    return Scene(pixels, mask, label, boxes, kinds, keypoints, np.stack(shapes), colour)


def _background(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Draw stripes of two similar colours, in random width and direction; uint8 [H, W, 3]."""
    first = rng.integers(20, 100, 3)
    second = first + rng.integers(-20, 21, 3)
    across, down, period = rng.integers(1, 9, 3)
    y, x = np.mgrid[:height, :width]
    stripes = (x * across + y * down) // (period * 4) % 2 == 0
    return np.where(stripes[:, :, None], first, second).astype(np.uint8)


def _shape(
    kind: int, centre: tuple[int, int], radius: int, angle: float, height: int, width: int
) -> NDArray[np.bool_]:
    """Draw a shape, bool [H, W]; it stays inside the circle of `radius`."""
    canvas, name = np.zeros((height, width), np.uint8), CLASSES[kind]
    if name in ("circle", "ring"):
        cv2.circle(canvas, centre, radius, 1, cv2.FILLED, cv2.LINE_8)
        if name == "ring":
            cv2.circle(canvas, centre, max(radius * 55 // 100, 2), 0, cv2.FILLED, cv2.LINE_8)
        return canvas.astype(bool)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    outline = np.rint(_OUTLINES[name] @ turn * radius + centre).astype(np.int32)
    cv2.fillPoly(canvas, [outline], 1, cv2.LINE_8)
    return canvas.astype(bool)


def _polygon(first: float, count: int, *radii: float) -> NDArray[np.float64]:
    """Return corners at equal angles from `first` on, in degrees."""
    turns = (first + 360 / count * np.arange(count)) * np.pi / 180
    return np.stack([np.sin(turns), -np.cos(turns)], 1) * np.resize(radii, count)[:, None]


_W, _R = 0.27, float(np.sqrt(1 - 0.27**2))
_OUTLINES = {
    "triangle": _polygon(0, 3, 1),
    "square": _polygon(45, 4, 1),
    "star": _polygon(0, 10, 1, 0.42),
    "cross": np.array([(_W, _R), (_W, _W), (_R, _W), (_R, -_W), (_W, -_W), (_W, -_R), (-_W, -_R),
                       (-_W, -_W), (-_R, -_W), (-_R, _W), (-_W, _W), (-_W, _R)]),
}  # fmt: skip
