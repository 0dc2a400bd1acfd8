"""Generate the demo set: coloured shapes as JPEG files, with exact annotations.

A tree like ::

    demo/images/train/circle/00012.jpg     the photographs, in class folders
    demo/images/val/...
    demo/masks/train/circle/00012.png      0: background, 1 + class id: a shape
    demo/masks/train/classes.txt           names of the mask's classes
    demo/annotations/train.json            boxes, masks and keypoints in COCO's format
    demo/annotations/train.csv             only the boxes, one in a row
    demo/annotations/train_colours.csv     red, green and blue of the largest shape
    demo/lmdb/train, demo/parquet/...      other forms, written on first use
    demo/penstock-demo.json                the marker, written last
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.datasets.demo.folder import own_folder
from penstock.datasets.records.labels import CLASSES_NAME

CLASSES = ("circle", "cross", "ring", "square", "star", "triangle")
KEYPOINTS = ("centre", "top", "right", "bottom", "left")
COUNTS = {"train": 3000, "val": 600}
_VERSION = 5
_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Scene:
    """A drawn image and its annotations.

    Attributes:
        image: uint8 [H, W, 3], RGB.
        mask: uint8 [H, W]; 0 is background, 1 + class id a shape.
        label: Class id of the main shape, the largest.
        boxes: int [N, 4], xyxy, pixels, right and bottom edges excluded; the main shape first.
        box_labels: Class ids, [N].
        shapes: The pixels of each shape, bool [N, H, W].
        colour: Red, green and blue of the main shape.
        keypoints: int [5, 3]: x, y, visibility; see `KEYPOINTS`, of the main shape.
    """

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    label: int
    boxes: list[list[int]]
    box_labels: list[int]
    keypoints: list[list[int]]
    shapes: NDArray[np.bool_]
    colour: list[int]


def demo_path(storage_name: str, data_dir: str | Path) -> Path:
    """Return the demo set's folder for a storage, generated and packed if it is missing.

    Raises:
        ValueError: The storage lacks a demo set, or ``demo`` is not a demo set.
    """
    from penstock.datasets.demo.forms import demo_forms, pack_demo

    if storage_name != "image_folder" and storage_name not in demo_forms():
        raise ValueError(
            f"path=demo: not made for the storage {storage_name!r}, only for "
            f"{', '.join(sorted({'image_folder', *demo_forms()}))}; set dataset.storage.path to "
            f"your data"
        )
    about = {"version": _VERSION, "classes": CLASSES, "counts": COUNTS}
    with own_folder(Path(data_dir) / "demo", about, generate) as root:
        if storage_name == "image_folder":
            return root / "images"
        for split in COUNTS:
            pack_demo(root, storage_name, split, CLASSES)
    return root / storage_name


def generate(root: Path, counts: dict[str, int] | None = None) -> None:
    """Draw the images of every split below `root`, with masks and annotations."""
    import cv2

    (root / "annotations").mkdir()
    for split_id, (split, count) in enumerate((counts or COUNTS).items()):
        for name in CLASSES:
            (root / "images" / split / name).mkdir(parents=True)
            (root / "masks" / split / name).mkdir(parents=True)
        names = "\n".join(["background", *CLASSES])
        (root / "masks" / split / CLASSES_NAME).write_text(f"{names}\n")
        images: list[dict[str, Any]] = []
        objects: list[dict[str, Any]] = []
        rows = ["image,label,xmin,ymin,xmax,ymax\n"]
        colours = ["image,red,green,blue\n"]
        for number in range(count):
            scene = draw_scene(split_id, number)
            key = f"{CLASSES[scene.label]}/{number:05d}.jpg"
            quality = [cv2.IMWRITE_JPEG_QUALITY, 92]
            _, jpeg = cv2.imencode(".jpg", scene.image[:, :, ::-1], quality)
            (root / "images" / split / key).write_bytes(jpeg.tobytes())
            _, png = cv2.imencode(".png", scene.mask, [cv2.IMWRITE_PNG_COMPRESSION, 1])
            (root / "masks" / split / key).with_suffix(".png").write_bytes(png.tobytes())
            height, width = scene.mask.shape
            images.append({"id": number, "file_name": key, "height": height, "width": width})
            objects += scene_objects(number, scene, first_id=len(objects) + 1)
            for box, kind in zip(scene.boxes, scene.box_labels, strict=True):
                rows.append(f"{key},{CLASSES[kind]},{','.join(map(str, box))}\n")
            colours.append(f"{key},{','.join(map(str, scene.colour))}\n")
        about = {
            "images": images,
            "annotations": objects,
            "categories": categories(CLASSES, KEYPOINTS),
        }
        (root / "annotations" / f"{split}.json").write_text(json.dumps(about) + "\n")
        (root / "annotations" / f"{split}.csv").write_text("".join(rows))
        (root / "annotations" / f"{split}_colours.csv").write_text("".join(colours))


def categories(names: Sequence[str], keypoints: Sequence[str]) -> list[dict[str, Any]]:
    """Return the classes, numbered from 1, with equal keypoints."""
    return [
        {"id": 1 + i, "name": name, "supercategory": "shape", "keypoints": list(keypoints),
         "skeleton": []}
        for i, name in enumerate(names)
    ]  # fmt: skip


def scene_objects(image_id: int, scene: Scene, *, first_id: int) -> list[dict[str, Any]]:
    """Return the shapes of an image as COCO annotations; the first, the largest, has keypoints."""
    objects: list[dict[str, Any]] = []
    for number, (box, kind) in enumerate(zip(scene.boxes, scene.box_labels, strict=True)):
        left, top, right, bottom = box
        shape = scene.shapes[number]
        objects.append(
            {
                "id": first_id + number,
                "image_id": image_id,
                "category_id": 1 + kind,
                "bbox": [left, top, right - left, bottom - top],
                "area": int(shape.sum()),
                "segmentation": {"size": list(shape.shape), "counts": run_lengths(shape)},
                "iscrowd": 0,
            }
        )
    points = [value for point in scene.keypoints for value in point]
    objects[0] |= {"keypoints": points, "num_keypoints": len(scene.keypoints)}
    return objects


def run_lengths(mask: NDArray[np.bool_]) -> list[int]:
    """Count the pixels of each run, by columns, background first, as COCO does."""
    flat = mask.T.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs: list[int] = np.diff([0, *changes, flat.size]).tolist()
    return [0, *runs] if flat[0] else runs


def draw_scene(split_id: int, number: int) -> Scene:
    """Draw one image: a large shape that gives the class, up to two small ones, on a texture.

    Depends only on its arguments. Edges are not smoothed, so that the mask is exact.
    """
    rng = np.random.Generator(np.random.Philox(key=_SEED, counter=[0, split_id, number, 0]))
    label = number % len(CLASSES)
    height, width = (int(n) for n in rng.integers(64, 113, 2))
    side = min(height, width)
    image = _background(rng, height, width)
    mask = np.zeros((height, width), np.uint8)
    radius = int(rng.integers(side * 30 // 100, side * 46 // 100))
    shapes = [(label, _place(rng, height, width, radius), radius)]
    for _ in range(int(rng.integers(0, 3))):
        small = int(rng.integers(5, 8))
        centre = _place(rng, height, width, small)
        # A shape stays inside its circle, and disjoint circles hide nothing.
        if all(np.hypot(centre[0] - x, centre[1] - y) > small + r + 2 for _, (x, y), r in shapes):
            shapes.append((int(rng.integers(len(CLASSES))), centre, small))
    boxes: list[list[int]] = []
    keypoints: list[list[int]] = []
    drawn: list[NDArray[np.bool_]] = []
    colours: list[list[int]] = []
    for kind, (x, y), size in shapes:
        shape = _shape_mask(kind, (x, y), size, float(rng.uniform(-0.4, 0.4)), height, width)
        colour = _bright_colour(rng)
        image[shape] = colour
        mask[shape] = kind + 1
        drawn.append(shape)
        colours.append(colour.tolist())
        boxes.append(_box(shape))
        if not keypoints:
            keypoints = [[x, y, 2], *_extremes(shape)]
    noise = rng.integers(-12, 13, image.shape)
    return Scene(
        image=np.clip(image.astype(np.int64) + noise, 0, 255).astype(np.uint8),
        mask=mask,
        label=label,
        boxes=boxes,
        box_labels=[kind for kind, _, _ in shapes],
        keypoints=keypoints,
        shapes=np.stack(drawn),
        colour=colours[0],
    )


def _background(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Draw stripes of two similar colours, in random width and direction; uint8 [H, W, 3]."""
    first = rng.integers(20, 100, 3)
    second = first + rng.integers(-20, 21, 3)
    across, down, period = (int(n) for n in rng.integers(1, 9, 3))
    y, x = np.mgrid[:height, :width]
    stripes = (x * across + y * down) // (period * 4) % 2 == 0
    return np.where(stripes[:, :, None], first, second).astype(np.uint8)


def _place(rng: np.random.Generator, height: int, width: int, radius: int) -> tuple[int, int]:
    """Return a centre, x and y, at which a circle stays inside the image."""
    x = int(rng.integers(radius + 1, width - radius - 1))
    return x, int(rng.integers(radius + 1, height - radius - 1))


def _bright_colour(rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return a colour brighter than every background."""
    colour = rng.integers(100, 256, 3)
    colour[rng.integers(3)] = 240
    return colour.astype(np.uint8)


def _shape_mask(
    kind: int, centre: tuple[int, int], radius: int, angle: float, height: int, width: int
) -> NDArray[np.bool_]:
    """Draw a shape's mask, bool [H, W]; it stays inside the circle of `radius`."""
    import cv2

    canvas = np.zeros((height, width), np.uint8)
    name = CLASSES[kind]
    if name in ("circle", "ring"):
        cv2.circle(canvas, centre, radius, 1, cv2.FILLED, cv2.LINE_8)
        if name == "ring":
            cv2.circle(canvas, centre, max(radius * 55 // 100, 2), 0, cv2.FILLED, cv2.LINE_8)
        return canvas.astype(bool)
    points = _OUTLINES[name]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    outline = np.rint(points @ turn * radius + centre).astype(np.int32)
    cv2.fillPoly(canvas, [outline], 1, cv2.LINE_8)
    return canvas.astype(bool)


def _polygon(angles: list[float], radii: list[float]) -> NDArray[np.float64]:
    turns = np.asarray(angles) * np.pi / 180
    return np.stack([np.sin(turns), -np.cos(turns)], 1) * np.asarray(radii)[:, None]


def _cross(half_width: float) -> NDArray[np.float64]:
    w, r = half_width, float(np.sqrt(1 - half_width**2))
    corners = [(w, r), (w, w), (r, w), (r, -w), (w, -w), (w, -r), (-w, -r), (-w, -w), (-r, -w),
               (-r, w), (-w, w), (-w, r)]  # fmt: skip
    return np.array(corners)


_OUTLINES = {
    "triangle": _polygon([0, 120, 240], [1] * 3),
    "square": _polygon([45, 135, 225, 315], [1] * 4),
    "star": _polygon([36.0 * i for i in range(10)], [1, 0.42] * 5),
    "cross": _cross(0.27),
}


def _box(shape: NDArray[np.bool_]) -> list[int]:
    rows, columns = np.flatnonzero(shape.any(1)), np.flatnonzero(shape.any(0))
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


def _extremes(shape: NDArray[np.bool_]) -> list[list[int]]:
    """Return the topmost, rightmost, bottommost and leftmost pixel (the first of ties), [4, 3]."""
    y, x = np.nonzero(shape)
    picks = (np.argmin(y), np.argmax(x), np.argmax(y), np.argmin(x))
    return [[int(x[i]), int(y[i]), 2] for i in picks]
