"""What the process of a loader imports: heavy packages only where the data needs them."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[3]

FIRST_BATCH = """
import sys
from penstock import build_loader, compose

overrides = ["augment=none", "dataset.val_fraction=0", "loader=threads",
             "loader.num_workers=2", "loader.batch_size=4", *sys.argv[1:]]
with build_loader(compose(overrides), "train") as loader:
    print(len(next(iter(loader))["image"]))
heavy = {"pyarrow", "lmdb", "h5py", "pandas", "matplotlib", "torchmetrics", "torchvision", "kornia"}
print(*sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow
def test_batches_of_files_need_no_package_for_tables(tmp_path):
    """Importing pyarrow takes 27 MB, and the index is written and read without it."""
    for number in range(8):
        folder = tmp_path / "images" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((40, 50, 3), number, np.uint8)
        assert cv2.imwrite(f"{folder}/{number}.jpg", pixels)
    path = f"{tmp_path}/images"
    for _ in range(2):  # the first scans and writes the index, the second reads it
        done = subprocess.run(
            [sys.executable, "-c", FIRST_BATCH, f"dataset.storage.path={path}"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines() == ["4", ""]
