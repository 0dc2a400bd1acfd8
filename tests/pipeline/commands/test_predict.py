"""Predictions: a row per record in order, the same for any ranks, whole files or none."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from penstock.pipeline.build import build_loader
from penstock.pipeline.commands import main
from penstock.pipeline.commands.named_files import naming_files
from penstock.pipeline.commands.predict import write_table
from penstock.pipeline.config.compose import compose
from penstock.pipeline.learning.building import build_model, build_task
from penstock.pipeline.learning.fields import task_field
from penstock.pipeline.learning.outputs import plain_columns
from penstock.pipeline.training.job import train
from penstock.pipeline.training.run_folder import read_classes
from penstock.pipeline.training.trained import reading_config
from tests.photographs import scene
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[3]
COUNT, ROWS = 23, 5
QUICK = ["loader=inline", f"loader.batch_size={ROWS}", "trainer.progress=off",
         "trainer.num_threads=1", "trainer.max_steps=1", "trainer.max_epochs=1"]  # fmt: skip


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("predicted") / "photographs"
    for split in ("train", "val"):
        for number in range(COUNT):
            folder = root / split / ("cat", "dög", "owl")[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(folder / f"{number}.png"), scene(40, 36 + number, number))
    return root


@pytest.fixture(scope="module")
def run_dir(photographs):
    given = [f"dataset.storage.path={photographs}", "augment.image_size=24", "sampler=weighted"]
    outputs = photographs.parent / "outputs"
    result = train(compose([*QUICK, *given, f"outputs={outputs}", "experiment=mixup",
                            "loader.batch_size=6"]))  # fmt: skip
    return Path(result["run_dir"])


def predict(run_dir, output, *overrides):
    return main(
        ["predict", f"predict.checkpoint={run_dir}", f"predict.output={output}", *overrides]
    )


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_record_has_its_row_in_order(run_dir, photographs, tmp_path, split):
    for name in ("a.csv", "a.parquet", "a.json"):
        assert predict(run_dir, tmp_path / name, f"predict.split={split}") == 0
    rows = rows_of(tmp_path / "a.csv")
    keys = [f"{c}/{n}.png" for c in ("cat", "dög", "owl") for n in range(COUNT)]
    keys = [key for key in keys if (photographs / split / key).exists()]
    assert sorted(row["key"] for row in rows) == sorted(keys) and len(rows) == COUNT
    assert [int(row["position"]) for row in rows] == list(range(COUNT))
    assert {row["class"] for row in rows} <= {"cat", "dög", "owl"}
    table = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert [str(row["score"]) for row in table] == [row["score"] for row in rows]
    assert [row["class"] for row in table] == [row["class"] for row in rows]
    assert json.loads((tmp_path / "a.json").read_text("utf-8")) == table


def test_all_of_other_data_is_predicted_and_what_is_left_out_is_said(
    run_dir, photographs, tmp_path, capsys
):
    other = tmp_path / "other"
    shutil.copytree(photographs / "train", other)
    assert predict(run_dir, tmp_path / "a.csv", f"dataset.storage.path={other}") == 0
    assert len(rows_of(tmp_path / "a.csv")) == COUNT
    assert capsys.readouterr().out.endswith(f", {COUNT} rows\n")
    given = [f"dataset.storage.path={other}", "dataset.val_fraction=0.5"]
    assert predict(run_dir, tmp_path / "b.csv", *given) == 0
    assert predict(run_dir, tmp_path / "c.csv", *given, "predict.split=train") == 0
    assert "of the split val; the others: split=train" in capsys.readouterr().out
    halves = [row["key"] for name in "bc" for row in rows_of(tmp_path / f"{name}.csv")]
    assert sorted(halves) == sorted(row["key"] for row in rows_of(tmp_path / "a.csv"))
    assert predict(run_dir, tmp_path / "d.csv") == 0
    assert "of the split val; the others: split=train" in capsys.readouterr().out


def test_scores_are_those_of_the_model_in_evaluation(run_dir, tmp_path):
    assert predict(run_dir, tmp_path / "a.csv") == 0
    config = compose([f"trainer.resume={run_dir}"])
    content = torch.load(run_dir / "checkpoints" / "best.pt", weights_only=True)
    from penstock.pipeline.build import build_device_transforms

    with build_loader(config, "val") as loader:
        model = build_model(config, 3).eval()
        model.load_state_dict(content["model"])
        found = []
        for batch in loader:
            for transform in build_device_transforms(config, "val"):
                batch = transform(batch)
            with torch.no_grad():
                found += model(batch).softmax(1).max(1).values.tolist()
    scores = [float(row["score"]) for row in rows_of(tmp_path / "a.csv")]
    assert scores == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("split", ["train", "val"])
def test_ranks_get_the_very_batches_of_one_process(run_dir, split, world_size):
    config = compose([f"trainer.resume={run_dir}"])

    def batches(rank, size):
        read, group = reading_config(config, run_dir, size)
        with build_loader(read, split, rank=rank, world_size=size, group=group) as loader:
            for batch in loader:
                yield batch["position"][batch["valid"]].tolist(), batch["image"][batch["valid"]]

    whole = dict((tuple(p), i) for p, i in batches(0, 1))
    assert sorted(p for positions in whole for p in positions) == list(range(COUNT))
    parts = [found for rank in range(world_size) for found in batches(rank, world_size)]
    shared = {tuple(p): image for p, image in parts if p}
    assert shared.keys() == whole.keys()
    assert all(torch.equal(shared[p], whole[p]) for p in whole)


@pytest.mark.slow
def test_two_ranks_write_the_same_file(run_dir, tmp_path):
    assert predict(run_dir, tmp_path / "one.parquet", "predict.split=train") == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
               "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--no-python",
               PENSTOCK, "predict", f"checkpoint={run_dir}", f"output={tmp_path / 'two.parquet'}",
               "split=train"]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written:") == 1
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_training_records_are_seen_as_evaluation_sees_them(run_dir, tmp_path):
    """The same photographs lie in both splits."""
    for split in ("train", "val"):
        assert predict(run_dir, tmp_path / f"{split}.csv", f"predict.split={split}") == 0
    assert (tmp_path / "train.csv").read_bytes() == (tmp_path / "val.csv").read_bytes()


def test_data_without_labels_is_told_by_the_classes_of_the_run(run_dir, photographs, tmp_path):
    assert read_classes(run_dir) == {"label": ("cat", "dög", "owl")}
    folder = tmp_path / "new"
    folder.mkdir()
    for number in range(7):
        shutil.copy(next((photographs / "val").glob(f"*/{number}.png")), folder / f"{number}.png")
    given = [f"dataset.storage.path={folder}", "dataset.storage.labels=null"]
    output = tmp_path / "a.csv"
    assert predict(run_dir, output, *given, "dataset.val_fraction=1") == 0
    rows = rows_of(output)
    assert [row["key"] for row in rows] == [f"{n}.png" for n in range(7)]
    assert predict(run_dir, tmp_path / "b.csv") == 0
    before = {row["key"].partition("/")[2]: row for row in rows_of(tmp_path / "b.csv")}
    for row in rows:
        assert row["class"] == before[row["key"]]["class"]
        assert float(row["score"]) == pytest.approx(float(before[row["key"]]["score"]), rel=1e-5)


def test_a_table_is_scaled_by_the_figures_of_the_run(tmp_path, data_dir):
    given = ["task=regression", f"data_dir={data_dir}", f"outputs={tmp_path / 'o'}"]
    run = Path(train(compose([*QUICK, *given, "loader.batch_size=256"]))["run_dir"])
    assert predict(run, tmp_path / "a.csv", "loader.batch_size=200") == 0
    demo = next(Path(data_dir).glob("demo_prices/*/csv/val.csv"))
    lines = demo.read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(lines[:21]) + "\n")
    new = [f"dataset.storage.path={tmp_path / 'new.csv'}", "dataset.val_fraction=1"]
    assert predict(run, tmp_path / "b.csv", *new, "loader.batch_size=200") == 0
    first, second = rows_of(tmp_path / "a.csv")[:20], rows_of(tmp_path / "b.csv")
    found = [float(row["prediction"]) for row in second]
    assert len(found) == 20
    assert found == pytest.approx([float(row["prediction"]) for row in first], rel=1e-4)


TASKS = ["detection", "segmentation", "keypoints", "identity", "sequence", "table", "multi"]


@pytest.mark.parametrize("task_name", TASKS)
def test_every_task_tells_a_row_for_each_sample(tmp_path, data_dir, task_name):
    config = compose([f"task={task_name}", f"data_dir={data_dir}", "loader=inline",
                      "loader.eval_batch_size=4"])  # fmt: skip
    with build_loader(config, "val") as loader:
        batch = next(iter(loader))
    from penstock.pipeline.build import build_device_transforms

    for transform in build_device_transforms(config, "val"):
        batch = transform(batch)
    known = {"table": loader.table, "classes_of": loader.classes_of}
    names = loader.classes_of(task_field(config))
    torch.manual_seed(0)
    model = build_model(config, len(names or ()), **known).eval()
    task = build_task(config, len(names or ()), names, **known)
    with torch.no_grad():
        outputs = model(batch)
        told = plain_columns(task.predictions(outputs, batch))
    assert told and all(len(values) == 4 for values in told.values())
    check = {"segmentation": _masks, "detection": _boxes, "keypoints": _points}.get(task_name)
    if check is not None:
        check(task, outputs, told, batch, names)
    plain = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in told.items()}
    write_table(tmp_path / "a.parquet", plain)
    write_table(tmp_path / "a.csv", plain)
    again = pq.read_table(tmp_path / "a.parquet").to_pydict()
    for name, values in plain.items():
        assert again[name] == (values.tolist() if isinstance(values, np.ndarray) else values)
    assert list(rows_of(tmp_path / "a.csv")[0]) == list(plain)


def _masks(task, outputs, told, batch, names):
    for row, png in enumerate(told["mask"]):
        mask = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_UNCHANGED)
        assert (mask == outputs[row].argmax(0).numpy()).all()


def _boxes(task, outputs, told, batch, names):
    for row, found in enumerate(task.detections(outputs)):
        assert told["boxes"][row] == found["boxes"].tolist()
        assert told["classes"][row] == [names[n] for n in found["labels"].tolist()]
        assert told["scores"][row] == sorted(told["scores"][row], reverse=True)
    assert told["image_height"] == told["image_width"] == [96] * 4


def _points(task, outputs, told, batch, names):
    assert [f"keypoint_{name}" for name in names] == list(told)[: len(names)]
    assert torch.equal(told["keypoint_left"], outputs["keypoints"][:, names.index("left")])


def test_a_file_that_is_there_is_left_alone(run_dir, tmp_path, capsys):
    output = tmp_path / "a.csv"
    output.write_text("mine")
    assert predict(run_dir, output) == 2
    assert "exists; choose another path" in capsys.readouterr().err
    assert output.read_text() == "mine"
    assert predict(run_dir, output, "predict.overwrite=true") == 0
    assert len(rows_of(output)) == COUNT
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("overrides", "status", "said"),
    [
        (["predict.checkpoint=/no/such"], 2, "predict.checkpoint: '/no/such' given"),
        (["predict.output=a.txt"], 2, "ends in .parquet or .csv"),
        (["predict.output={tmp}/file/a.csv"], 2, "cannot write to the folder"),
        (["predict.checkpoint={tmp}/file"], 2, "file is cut short or damaged (4 bytes)"),
        (["predict.checkpoint={tmp}/run"], 2, "which no run has"),
        (["model.width=8"], 2, "best.pt does not fit this model"),
        (["predict.splitt=val"], 2, "predict.split"),
        (["predicted=3"], 2, "unknown key"),
        (["sampler=random"], 2, "  sampler: sampler._target_ would be"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    run_dir, tmp_path, capsys, monkeypatch, overrides, status, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "file").write_bytes(b"mine")
    before = sorted(tmp_path.rglob("*"))
    given = [text.format(tmp=tmp_path) for text in overrides]
    assert predict(run_dir, tmp_path / "x.csv", *given) == status
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 + err.startswith("1 error")
    assert sorted(tmp_path.rglob("*")) == before


def test_where_writing_breaks_off_nothing_is_left(tmp_path, monkeypatch):
    output = tmp_path / "a.csv"
    output.write_text("before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match="cannot be written: No space left"):
        write_table(output, {"a": [1]})
    assert output.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.csv"]


def test_lists_and_bytes_in_csv(tmp_path):
    columns = {"a": [[1, 2.5], []], "b": ["x,\n\"y\"", "ж"], "c": [b"\0\1", b""],
               "d": np.array([[1, 2], [3, 4]], np.float32)}  # fmt: skip
    write_table(tmp_path / "a.csv", columns)
    first, second = rows_of(tmp_path / "a.csv")
    assert json.loads(first["a"]) == [1, 2.5] and json.loads(second["a"]) == []
    assert (first["b"], second["b"]) == ('x,\n"y"', "ж")
    assert first["c"] == "AAE=" and json.loads(second["d"]) == [3, 4]


def test_a_pattern_names_the_files_that_match(tmp_path):
    for name in ("b.jpg", "a.jpg", "deep/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    named = naming_files([f"{tmp_path}/**/*.jpg", "x=1"])
    paths = ",".join(f"'{tmp_path / name}'" for name in ("a.jpg", "b.jpg", "deep/c.jpg"))
    assert named == ["dataset=image_files", f"dataset.storage.paths=[{paths}]", "x=1"]
    with pytest.raises(ValueError) as caught:
        naming_files([f"{tmp_path}/*.png"])
    assert [problem.key for problem in caught.value.problems] == [f"{tmp_path}/*.png"]
