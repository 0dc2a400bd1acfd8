"""What a program has imported when it begins: nothing that not every use of it needs."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock import compose
from penstock.datasets.demo.forms import demo_forms, pack_demo
from penstock.pipeline.build import build_dataset
from penstock.pipeline.commands import COMMANDS
from penstock.pipeline.config.components import register_components
from tests.heavy_modules import HEAVY

ROOT = Path(__file__).resolve().parents[1]


def test_configuration_imports_nothing_heavy():
    code = (
        "import sys; from penstock.pipeline.config.components import register_components;"
        "register_components();"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


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
        f"print(*sorted(name for name in {sorted(slow)!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == needed


FIRST_RUN = """
import sys
import numpy as np
from penstock.pipeline.config.components import register_components
from penstock.core.registry import components

register_components()
storages = {storage.name: storage.target for storage in components("storage")}
for argument in sys.argv[1:]:
    name, path = argument.split("=")
    storage = storages[name](path)
    print(name, len(storage.read(np.arange(len(storage)))), "pyarrow" in sys.modules)
"""


def test_the_first_run_over_data_needs_pyarrow_only_where_the_data_does(tmp_path):
    """Importing it takes 26 MB, and indexes are written without it."""
    for number in range(4):
        folder = tmp_path / f"images/train/{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(f"{folder}/{number}.png", np.full((32, 32, 3), number, np.uint8))
    paths = {"image_folder": tmp_path / "images/train"}
    shutil.make_archive(str(tmp_path / "images"), "zip", tmp_path / "images/train")
    paths["zip"] = tmp_path / "images.zip"
    register_components()
    others = {"image_folder", "jsonl", "arrow", "csv", "parquet", "zip"}
    heavy = ("csv", "parquet")
    for name in (*sorted({*demo_forms()} - others), *heavy):
        pack_demo(tmp_path, name, "train", ("0", "1"))
        (paths[name],) = (tmp_path / name).glob("train*")
    done = subprocess.run(
        [sys.executable, "-c", FIRST_RUN, *(f"{name}={path}" for name, path in paths.items())],
        cwd=ROOT, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{name} 4 {name in heavy}" for name in paths], done


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


def test_training_imports_no_augmentation_library(data_dir, tmp_path):
    code = (
        "import sys; from penstock import compose, fit;"
        "fit(compose(sys.argv[1:]));"
        "print(*sorted({'albumentations', 'torchvision'} & sys.modules.keys()))"
    )
    typed = [f"data_dir={data_dir}", f"outputs={tmp_path}", "debug=one_batch", "loader=inline"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *typed], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "" and not done.returncode, done.stderr


def test_the_folder_is_not_taken_for_the_other_datasets_package():
    code = "import datasets"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert "run your program from another folder" in done.stderr
