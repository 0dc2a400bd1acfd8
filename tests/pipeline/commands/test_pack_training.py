"""The command that ``pack`` ends with: it trains, as it is printed."""

from __future__ import annotations

import shlex
import shutil
from itertools import cycle

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.datasets.demo import sequences, shapes
from penstock.datasets.demo.shapes import CLASSES
from penstock.pipeline.commands import main
from penstock.pipeline.config.app import main as train
from tests.pipeline.commands.test_pack import batches, same

FORMS = ["lmdb", "webdataset", "parquet", "arrow"]
ARRAYS = ["memmap", "npy_shards", "pt_shards"]
QUICK = [
    "loader=inline", "loader.batch_size=4", "loader.drop_last=false", "trainer.max_steps=1",
    "trainer.limit_val_batches=1", "trainer.progress=off",
]  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A demo set with a few of its images and sequences."""
    with pytest.MonkeyPatch.context() as patch:
        for demo in (shapes, sequences):
            patch.setattr(demo, "COUNTS", {"train": 90, "val": 30})
        yield tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("some photographs")
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for number in range(6):
            image = draw.integers(0, 255, (40, 40, 3), np.uint8)
            cv2.imwrite(str(folder / name / f"{number}.png"), image)
    return folder


def printed(capsys, *overrides):
    """Pack; return the arguments of the command that it prints for training."""
    assert main(["pack", *overrides]) == 0
    start, _, words = capsys.readouterr().out.splitlines()[-1].partition("penstock train ")
    assert start == "train on it: "
    return shlex.split(words)


def trains(words, tmp_path):
    given = [*words, *QUICK, f"outputs={tmp_path / 'runs'}"]
    return train(given) == 0


@pytest.mark.parametrize("form", [*FORMS, "hdf5", "image_folder"])
def test_images_in_files(photographs, tmp_path, capsys, form):
    given = [f"dataset.storage.path={photographs}", "dataset.val_fraction=0.25"]
    words = printed(capsys, *given, f"to={form}", f"path={tmp_path / 'in it'}")
    assert trains(words, tmp_path)
    found = batches(*words)
    if form != "image_folder":  # which has an order of its own
        assert same(found, batches(*given))


@pytest.mark.parametrize("share", ["0.5", "1"])
@pytest.mark.parametrize("form", ["lmdb", *ARRAYS])
def test_decoded_images(photographs, tmp_path, capsys, form, share):
    if form in ARRAYS and share != "1":
        pytest.skip("it holds no files")
    given = [f"dataset.storage.path={photographs}", "dataset.val_fraction=0.25"]
    given += ["dataset.decode.mode=L"]
    words = printed(capsys, *given, f"to={form}", f"path={tmp_path / 'a'}", f"raw={share}")
    grey = ["augment.device.normalize.mean=[0.5]", "augment.device.normalize.std=[0.5]"]
    assert same(batches(*words, *grey), batches(*given, *grey))


@pytest.mark.parametrize("form", [*FORMS, "hdf5", *ARRAYS])
def test_arrays(tmp_path, capsys, form):
    draw = np.random.default_rng(0)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/features.npy", draw.normal(size=(20, 3, 2)).astype(np.float32))
    np.save(tmp_path / "arrays/labels.npy", np.arange(20) % 2)
    given = ["dataset=memmap", f"dataset.storage.path={tmp_path / 'arrays'}"]
    words = printed(capsys, *given, f"to={form}", f"path={tmp_path / 'a'}")
    stack = ["augment=as_is", "sampler=sequential", *QUICK[:3]]
    rows = []
    for overrides in (given, words):
        with build_loader(compose([*overrides, *stack])) as loader:
            rows.append([row.tolist() for batch in loader for row in batch["features"]])
    assert rows[0] == rows[1] != []


@pytest.mark.parametrize(
    ("form", "typed"), zip([*FORMS, "hdf5"], cycle([["task=table"], ["dataset=csv"]]))
)
def test_rows_of_tables(tmp_path, capsys, form, typed):
    table = tmp_path / "table.csv"
    rows = [f"{i / 7},{'uvw'[i % 3]},{'yes' if i % 2 else 'no'}" for i in range(40)]
    table.write_text("\n".join(["size,kind,label", *rows]))
    given = [*typed, f"dataset.storage.path={table}"]
    assert trains(printed(capsys, *given, f"to={form}", f"path={tmp_path / 'a'}"), tmp_path)


def test_sequences(tmp_path, capsys, data_dir):
    given = ["task=sequence", f"data_dir={data_dir}"]
    assert trains(printed(capsys, *given, "to=parquet", f"path={tmp_path / 'a'}"), tmp_path)


TASKS = (
    "detection", "segmentation", "keypoints", "instances", "multi", "image_regression", "multilabel"
)  # fmt: skip


@pytest.mark.parametrize(("form", "task"), zip(cycle(FORMS), TASKS))
def test_what_files_beside_the_data_gave(tmp_path, capsys, data_dir, form, task):
    given = [f"task={task}", f"data_dir={data_dir}"]
    if task == "multilabel":
        labels = [f"{kind}/{i:05d}.jpg,{i % 2},1\n" for i in range(90) for kind in CLASSES]
        (tmp_path / "labels.csv").write_text("image,small,drawn\n" + "".join(labels))
        given.append(f"dataset.annotations.path={tmp_path / 'labels.csv'}")
    words = printed(capsys, *given, f"to={form}", f"path={tmp_path / 'a'}")
    assert trains([*words, *["sampler=weighted"] * (task == "detection")], tmp_path)
    with build_loader(compose([*words, *QUICK[:3]])) as packed:
        with build_loader(compose([*given, *QUICK[:3]])) as plain:
            for field in ("box_labels", "mask", "keypoints", "values", "labels"):
                assert packed.classes_of(field) == plain.classes_of(field)


def test_names_that_nobody_gave_or_that_stay_behind(tmp_path, capsys, data_dir):
    given = ["pack", "task=segmentation", f"data_dir={data_dir}", "to=webdataset"]
    assert main([*given, f"path={tmp_path / 'a'}"]) == 0
    again = ["pack", "dataset=webdataset", f"dataset.storage.path={tmp_path / 'a'}", "to=parquet"]
    capsys.readouterr()
    assert main([*again, f"path={tmp_path / 'b'}"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("stay behind; to keep them, add dataset/annotations=in_records")
    words = printed(capsys, *again[1:], "dataset/annotations=in_records", f"path={tmp_path / 'c'}")
    with build_loader(compose([*words, "task=segmentation"])) as loader:
        assert loader.classes_of("mask") == ("background", *CLASSES)
    nameless = tmp_path / "nameless"
    shutil.copytree(data_dir / "demo/masks", nameless, ignore=lambda *_: ["classes.txt"])
    named = [f"dataset.annotations.path={nameless}/{{part}}", f"path={tmp_path / 'e'}"]
    assert main([*given, *named]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"read it with: dataset=webdataset dataset.storage.path={tmp_path / 'e'}"


def test_a_task_that_an_experiment_chose(tmp_path, capsys, data_dir):
    (tmp_path / "conf/experiment").mkdir(parents=True)
    text = "# @package _global_\ndefaults: [override /task: segmentation]\n"
    (tmp_path / "conf/experiment/mine.yaml").write_text(text)
    words = printed(
        capsys, "--config-dir", str(tmp_path / "conf"), "experiment=mine", f"data_dir={data_dir}",
        f"path={tmp_path / 'a'}",
    )  # fmt: skip
    assert words[:3] == ["dataset=lmdb", "task=segmentation", "dataset/annotations=in_records"]
