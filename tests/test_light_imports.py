"""What a program has imported when it begins: nothing that not every use of it needs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import compose
from penstock.pipeline.build import build_dataset
from penstock.pipeline.commands import COMMANDS
from tests.heavy_modules import HEAVY

ROOT = Path(__file__).resolve().parents[1]


def test_the_public_names():
    assert penstock.__all__ == ["build_loader", "compose", "fit", "preview", "register", "train"]


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        ([f"penstock.pipeline.commands.{name}" for name in COMMANDS], set()),
        (["penstock.pipeline.training.job"], {"torch"}),
    ],
    ids=["commands", "training"],
)
def test_a_program_imports_what_every_use_of_it_needs_and_no_more(names, needed):
    slow = {*HEAVY, "torch._dynamo", "kornia", "pandas", "scipy", "sympy", "tensorboard", "PIL"}
    code = (
        f"import sys; import {', '.join(names)};"
        "from penstock.pipeline.config.components import register_components;"
        "register_components();"
        f"print(*sorted(name for name in {sorted(slow)!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == needed


BATCHES = """
import pickle, sys
import numpy as np
from penstock.pipeline.config.components import register_components

register_components()
for dataset in pickle.load(sys.stdin.buffer):
    at = np.arange(4)
    shapes = {sample["image"].shape for sample in dataset.fetch(at, at, 0)}
    assert len(shapes) == 1, shapes
print(*sorted({"torch", "albumentations", "torchvision"} & sys.modules.keys()))
"""


def test_a_worker_imports_no_augmentation_library_that_its_config_does_not_name(data_dir):
    """Importing albumentations takes 2 s, and torch with it."""
    masks, boxes = ["dataset/annotations=mask_folder"], ["dataset/annotations=coco", "collate=list"]
    presets = {"light": [], "imagenet": [], "none": [], "device": ["augment.image_size=48"],
               "segmentation": masks, "keypoints": boxes, "detection": boxes, "mosaic": boxes,
               "strong": ["augment.train.grey=null", "augment.train.blur=null",
                          "augment.train.hole=null"]}  # fmt: skip
    datasets = [
        build_dataset(compose([f"data_dir={data_dir}", f"augment={name}", *more]), split)
        for name, more in presets.items()
        for split in ("train", "val")
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-c", BATCHES], cwd=ROOT, input=pickle.dumps(datasets),
        capture_output=True,
    )  # fmt: skip
    assert done.stdout.split() == [] and not done.returncode, done.stderr.decode()


def test_the_folder_is_not_taken_for_the_other_datasets_package():
    code = "import datasets"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "run your program from another folder" in done.stderr
