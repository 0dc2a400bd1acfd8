"""The photographs that benchmarks run on: links to those given, and large ones made of them."""

from __future__ import annotations

import itertools
from pathlib import Path

SUFFIXES = {".jpg", ".jpeg"}
_LARGE_HEIGHT, _LARGE_WIDTH, _TILE = 3000, 4000, 500


def find_photographs(folder: Path) -> list[Path]:
    """The JPEG files below a folder, sorted.

    Raises:
        ValueError: There are none.
    """
    found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not found:
        raise ValueError(f"{folder}: got no JPEG file, expected a folder of photographs")
    return found


def link_photographs(photographs: list[Path], target: Path, count: int) -> None:
    """Fill the new folder `target` with `count` links to photographs, each as often as needed."""
    target.mkdir()
    for number, path in enumerate(itertools.islice(itertools.cycle(photographs), count)):
        (target / f"{number:06d}.jpg").symlink_to(path.resolve())


def make_large(photographs: list[Path], target: Path, *, different: int, count: int) -> None:
    """Fill `target` with `count` links to `different` photographs of 4000 x 3000 pixels.

    Each is put together of 48 photographs of 500 x 500, which keep their detail, as JPEG of
    quality 92.
    """
    import cv2
    import numpy as np

    sources = target.with_name(f"{target.name} sources")
    sources.mkdir(parents=True)
    paths = itertools.cycle(photographs)
    for number in range(different):
        image = np.empty((_LARGE_HEIGHT, _LARGE_WIDTH, 3), np.uint8)
        for top in range(0, _LARGE_HEIGHT, _TILE):
            for left in range(0, _LARGE_WIDTH, _TILE):
                part = cv2.resize(cv2.imread(str(next(paths))), (_TILE, _TILE))
                image[top : top + _TILE, left : left + _TILE] = part
        cv2.imwrite(f"{sources}/{number}.jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 92])
    link_photographs(sorted(sources.iterdir()), target, count)
