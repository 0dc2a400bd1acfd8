"""Evaluation: training's own figures, every sample once, classes by name; other data and files."""

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
import yaml

from penstock.pipeline.commands import main
from penstock.pipeline.commands.evaluate import rows_by_class, table_of
from penstock.pipeline.config.compose import compose
from penstock.pipeline.training.job import train
from tests.datasets.storages.lmdb_files import Listed
from tests.packed import write_lmdb
from tests.photographs import scene
from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[3]
CLASSES = ("cat", "dög", "owl")
COUNTS = {"Train": 12, "Val": 11, "Test": 7}
QUICK = ["loader=inline", "loader.batch_size=5", "trainer.progress=off", "trainer.num_threads=1",
         "trainer.max_steps=2", "trainer.max_epochs=1", "augment.image_size=24"]  # fmt: skip


def picture(number):
    return cv2.imencode(".png", scene(40, 36 + number % 8, number))[1].tobytes()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluated") / "photographs"
    for at, (split, count) in enumerate(COUNTS.items()):
        for number in range(count):
            folder = root / split / CLASSES[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.png").write_bytes(picture(100 * at + number))
    return root


@pytest.fixture(scope="module")
def trained(photographs):
    given = [f"dataset.storage.path={photographs}", f"outputs={photographs.parent / 'outputs'}"]
    return train(compose([*QUICK, *given, "experiment=mixup", "loader.batch_size=6"]))


@pytest.fixture(scope="module")
def run_dir(trained):
    return Path(trained["run_dir"])


def evaluate(run_dir, output, *overrides):
    status = main(["evaluate", f"checkpoint={run_dir}", f"output={output}", *overrides])
    return json.loads(output.read_text()) if status == 0 else status


def predict(run_dir, output, *overrides):
    assert main(["predict", f"checkpoint={run_dir}", f"output={output}", *overrides]) == 0
    with open(output, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_figures_are_those_of_validation_to_the_bit(trained, run_dir, tmp_path):
    found = evaluate(run_dir, tmp_path / "a.json", "split=val")
    expected = {name[4:]: value for name, value in trained.items() if name.startswith("val/")}
    assert found["metrics"] == expected and set(expected) == {"loss", "accuracy"}
    assert (found["split"], found["samples"], found["bad_samples"]) == ("val", COUNTS["Val"], 0)


def test_the_test_split_is_the_default_and_the_matrix_counts_every_sample(
    run_dir, tmp_path, capsys
):
    found = evaluate(run_dir, tmp_path / "a.json")
    said = capsys.readouterr().out
    assert (found["split"], found["samples"]) == ("test", COUNTS["Test"])
    assert "7 samples of the split test; the others: split=train or val" in said
    rows = predict(run_dir, tmp_path / "p.csv")
    assert len(rows) == COUNTS["Test"]
    with open(tmp_path / "a_confusion.csv", newline="", encoding="utf-8") as file:
        [head, *lines] = csv.reader(file)
    assert head[1:] == [line[0] for line in lines] == list(CLASSES)
    for line in lines:
        for name, count in zip(CLASSES, line[1:], strict=True):
            pairs = [(row["label"], row["class"]) for row in rows]
            assert int(count) == pairs.count((line[0], name))
    right = sum(row["label"] == row["class"] for row in rows)
    assert found["metrics"]["accuracy"] == pytest.approx(right / len(rows))
    assert [row["count"] for row in found["classes"].values()] == [3, 2, 2]
    assert all(name in said for name in ("precision", *CLASSES))
    image = cv2.imread(str(tmp_path / "a_confusion.png"))
    assert image.shape[0] == image.shape[1] > 300 and image.std() > 10


def test_figures_of_a_class_follow_from_the_matrix():
    matrix = torch.tensor([[3, 1, 0], [2, 0, 0], [0, 0, 0]])
    iou = torch.tensor([0.5, 0.0, float("nan")])
    rows = rows_by_class({"iou": iou, "confusion": matrix}, ["a", "b", "c"])
    assert rows["a"] == {"iou": 0.5, "precision": 0.6, "recall": 0.75, "f1": 6 / 9, "count": 4}
    assert rows["b"] == {"iou": 0, "precision": 0, "recall": 0, "f1": 0, "count": 2}
    nothing = {"iou": None, "precision": None, "recall": None, "f1": None, "count": 0}
    assert rows["c"] == nothing
    missed = torch.tensor([[3, 1, 2], [0, 0, 0], [3, 1, 0]])  # the background is last
    rows_of_boxes = rows_by_class({"confusion": missed}, ["a", "b"])
    assert [*rows_of_boxes] == ["a", "b"]
    assert rows_of_boxes["a"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "count": 6}
    precision = {"average_precision": torch.tensor([0.0, 1.0, float("nan")])}
    lines = table_of(rows_by_class(precision, ["a", "b", "c"]), Path("x.json"))
    assert [line.split() for line in lines[2:]] == [["a", "0.000"], ["b", "1.000"]]
    assert table_of(dict.fromkeys(map(str, range(99)), rows["a"]), Path("x.json")) == [
        "99 classes: the figures of each are in x.json"
    ]


def test_data_without_a_test_split_is_what_was_validated_on_and_that_is_said(
    photographs, tmp_path, capsys
):
    """And a test split may lie elsewhere; what lay beside the run's data stays there."""
    whole = tmp_path / "whole"
    shutil.copytree(photographs / "Train", whole)
    outputs = f"outputs={tmp_path / 'o'}"
    given = [f"dataset.storage.path={whole}", "dataset.val_fraction=0.4", outputs]
    run = train(compose([*QUICK, *given]))["run_dir"]
    capsys.readouterr()
    found = evaluate(run, tmp_path / "a.json")
    assert found["split"] == "val" and 0 < found["samples"] < COUNTS["Train"]
    assert "no test split" in (said := capsys.readouterr().out)
    assert "dataset.test_path=" in said and "the others: split=train" in said
    assert evaluate(run, tmp_path / "b.json", "split=test") == 2
    assert "type dataset.test_path=" in (said := capsys.readouterr().err) and said.count("\n") == 1
    typed = [f"dataset.test_path={photographs / 'Test'}"]
    assert evaluate(run, tmp_path / "b.json", "split=test", *typed)["samples"] == COUNTS["Test"]
    assert evaluate(run, tmp_path / "c.json", *typed)["split"] == "test"
    file = Path(run, "config.yaml")
    config = yaml.safe_load(file.read_text())
    config["dataset"] |= {"val_path": str(photographs / "Val"), "test_path": str(photographs)}
    file.write_text(yaml.safe_dump(config))
    other = f"dataset.storage.path={photographs / 'Test'}"
    assert evaluate(run, tmp_path / "d.json", other)["samples"] == COUNTS["Test"]


@pytest.mark.parametrize("names", [CLASSES, ("owl", "cat", "dög"), ("dög", "owl")])
def test_classes_of_other_data_are_found_by_their_names(run_dir, tmp_path, names):
    """A run on folders tells the same of the same images packed, whatever their ids are there."""
    records = {
        f"{n:02d}": {"image": picture(n), "label": n % len(names)} for n in range(2 * len(names))
    }
    write_lmdb(tmp_path / "packed", Listed(records, names))
    given = ["dataset=lmdb", f"dataset.storage.path={tmp_path / 'packed'}"]
    rows = predict(run_dir, tmp_path / "a.csv", *given)
    assert [row["label"] for row in rows] == [*names, *names]
    assert evaluate(run_dir, tmp_path / "a.json", *given)["samples"] == len(records)
    folder = tmp_path / "folder"
    for key, record in records.items():
        path = folder / names[record["label"]] / f"{key}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record["image"])
    again = predict(run_dir, tmp_path / "b.csv", f"dataset.storage.path={folder}")
    told = {Path(row["key"]).stem: row for row in again}
    for row in rows:  # the place in a batch decides the last digit on some processors
        again, first = told[row["key"]]["probability_owl"], row["probability_owl"]
        assert float(again) == pytest.approx(float(first), abs=1e-5)


def test_classes_that_cannot_be_put_in_order_are_refused(run_dir, tmp_path, capsys):
    images = np.stack([cv2.resize(scene(40, 40, n), (32, 32)) for n in range(4)])
    np.save(tmp_path / "image.npy", images)
    np.save(tmp_path / "label.npy", np.arange(4) % 3)
    (tmp_path / "classes.txt").write_text("owl\ncat\ndög\n")
    given = ["dataset=memmap", f"dataset.storage.path={tmp_path}"]
    assert evaluate(run_dir, tmp_path / "a.json", *given) == 2
    said = capsys.readouterr().err
    assert "classes.txt has the classes owl" in said and said.count("\n") == 1
    (tmp_path / "x" / "lion").mkdir(parents=True)
    (tmp_path / "x" / "lion" / "1.png").write_bytes(picture(1))
    given = [f"dataset.storage.path={tmp_path / 'x'}"]
    assert evaluate(run_dir, tmp_path / "a.json", *given) == 2
    assert "'lion' is not among the 3 classes (cat, dög, owl)" in capsys.readouterr().err
    rows = predict(run_dir, tmp_path / "a.csv", *given, "dataset.storage.labels=null")
    assert "label" not in rows[0] and rows[0]["key"] == "lion/1.png"
    given = ["dataset=torch", "dataset.target=tests.torch_datasets.Squares"]
    assert evaluate(run_dir, tmp_path / "a.json", *given) == 2
    said = capsys.readouterr().err
    assert "are not named, and the model was trained on cat, dög, owl" in said
    typed = said.rpartition("type ")[2].strip()
    assert evaluate(run_dir, tmp_path / "a.json", *given, typed)["split"] == "val"


def test_images_and_folders_are_predicted_by_their_paths(
    run_dir, photographs, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photographs / "Val" / "owl", tmp_path / "new photos")
    files = sorted(f"new photos/{name}" for name in os.listdir("new photos"))[::-1]
    (tmp_path / "it's.png").write_text("no image")
    assert main(["predict", f"checkpoint={run_dir}", "top=2", *files, "it's.png"]) == 1
    said = capsys.readouterr().out
    assert said.count("it's.png") == said.count("bad sample: ") == 1
    assert f"{len(files) + 1} rows, 1 without a prediction" in said
    *rows, failed = pq.read_table("predictions.parquet").to_pylist()
    assert failed["key"] == "it's.png" and failed["error"] and failed["class"] is None
    assert [row["key"] for row in rows] == files
    assert all(r["class"] == r["class_1"] and r["score"] == r["probability_1"] for r in rows)
    assert list(rows[0])[-4:] == ["class_1", "probability_1", "class_2", "probability_2"]
    folder = {Path(r["key"]).name: r for r in predict(run_dir, tmp_path / "a.csv", "new photos")}
    before = predict(run_dir, tmp_path / "b.csv", "split=val")
    before = {Path(r["key"]).name: r for r in before if r["label"] == "owl"}
    assert folder.keys() == before.keys() and "label" not in folder["2.png"]
    assert all(before[n]["probability_cat"] == r["probability_cat"] for n, r in folder.items())
    for words, what in (
        (["no.png"], "no.png: no such file or folder; give images"),
        (["it's.png", "new photos"], "  new photos: "),
    ):
        assert main(["predict", f"checkpoint={run_dir}", *words]) == 2
        assert what in capsys.readouterr().err


def test_other_data_is_decoded_as_the_runs_was(photographs, tmp_path):
    given = [*QUICK, f"dataset.storage.path={photographs}", "dataset.decode.orientation=ignore"]
    run = train(compose([*given, f"outputs={tmp_path / 'o'}"]))["run_dir"]
    image = photographs / "Val" / "owl" / "2.png"
    command = ["predict", f"checkpoint={run}", str(image), f"output={tmp_path / 'a.csv'}"]
    from penstock.pipeline.commands.named_files import naming_files
    from penstock.pipeline.config.compose import configure

    config = configure(naming_files(command[1:]), command="predict")
    assert config["dataset"]["storage"]["_target_"] == "storage/image_files"
    assert config["dataset"]["decode"]["orientation"] == "ignore"
    assert main(command) == 0


def test_data_without_labels_cannot_be_evaluated_on(run_dir, photographs, tmp_path, capsys):
    given = [f"dataset.storage.path={photographs / 'Val' / 'owl'}"]
    assert evaluate(run_dir, tmp_path / "a.json", *given) == 2
    said = capsys.readouterr().err
    assert "the batch has no 'label'" in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "status", "said"),
    [
        (["checkpoint=/no/such"], 2, "evaluate.checkpoint: '/no/such' given"),
        (["checkpoint={tmp}/run"], 2, "has no checkpoints"),
        (["checkpoint={tmp}/file"], 2, "file is cut short or damaged (4 bytes)"),
        (["output=a.csv"], 2, "expected a file name that ends in .json"),
        (["output={tmp}/there.json"], 2, "there_confusion.png exists; choose another path"),
        (["model.width=8"], 2, "best.pt does not fit this model"),
        (["split=tset"], 2, "evaluate.split"),
        (["dataset.test_path=/no/such"], 2, "dataset.test_path: '/no/such' not found"),
        (["sampler=weighted"], 2, "  sampler: sampler._target_ would be"),
        (["photo.jpg"], 2, "no value given"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    run_dir, tmp_path, capsys, monkeypatch, overrides, status, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    shutil.copy(run_dir / "config.yaml", tmp_path / "run")
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "there_confusion.png").write_bytes(b"mine")
    before = sorted(tmp_path.rglob("*"))
    given = [text.format(tmp=tmp_path) for text in overrides]
    assert evaluate(run_dir, tmp_path / "x.json", *given) == status
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1 + err.startswith("1 error")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_two_ranks_give_the_same_figures(run_dir, tmp_path):
    one = evaluate(run_dir, tmp_path / "one.json", "split=train")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
               "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--no-python",
               PENSTOCK, "evaluate", f"checkpoint={run_dir}", f"output={tmp_path / 'two.json'}",
               "split=train"]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written:") == 1
    two = json.loads((tmp_path / "two.json").read_text())
    assert two["metrics"].pop("loss") == pytest.approx(one["metrics"].pop("loss"), rel=1e-12)
    assert one == two and one["samples"] == COUNTS["Train"]
