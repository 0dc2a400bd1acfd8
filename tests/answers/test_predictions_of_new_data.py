"""New data needs no labels to be predicted, and each of its records keeps its row."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.pipeline.commands import main
from penstock.pipeline.training.job import train

QUICK = ["loader=inline", "loader.batch_size=4", "trainer.max_steps=1", "trainer.max_epochs=1",
         "trainer.progress=off", "trainer.num_threads=1", "trainer.validate_every=0"]  # fmt: skip


def trained(outputs, *overrides):
    return train(penstock.compose([*QUICK, f"outputs={outputs}", *overrides]))["run_dir"]


def predict(run, output, *overrides):
    """Return the exit status and the rows."""
    status = main(["predict", f"checkpoint={run}", f"output={output}", *overrides])
    return status, json.loads(Path(output).read_text("utf-8"))


def write_image(path, number=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(number).integers(0, 255, (40, 48, 3), np.uint8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("folders")
    for number in range(12):
        write_image(root / "images" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    return root


@pytest.fixture(scope="module")
def classifier(folders):
    return trained(folders / "o", f"dataset.storage.path={folders / 'images'}",
                   "augment.image_size=16")  # fmt: skip


def table(count):
    names = [f"{n % 3}" for n in range(count)]
    return {"size": [n * 1.5 for n in range(count)], "town": names, "answer": ["no", "yes"] * (
        count // 2), "price": [2.0 * n for n in range(count)]}  # fmt: skip


def write_rows(path, columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("task", ["table", "regression"])
def test_a_table_without_its_target(tmp_path, form, task):
    write_rows(tmp_path / f"known.{form}", table(20))
    target = {"table": ["dataset.storage.label_column=answer", "dataset.keys={price:null}"],
              "regression": ["dataset.decode.target=price", "dataset.keys={answer:null}"],
    }  # fmt: skip
    known = f"dataset.storage.path={tmp_path / f'known.{form}'}"
    run = trained(tmp_path / "o", f"task={task}", f"dataset={form}", "dataset/decode=table",
                  known, *target[task])  # fmt: skip
    columns = table(6)
    without = {name: columns[name] for name in ("size", "town")}
    write_rows(tmp_path / f"new.{form}", without)
    write_rows(tmp_path / f"labelled.{form}", columns)
    status, rows = predict(run, tmp_path / "a.json", str(tmp_path / f"new.{form}"))
    assert status == 0 and [row["position"] for row in rows] == list(range(6))
    status, labelled = predict(run, tmp_path / "b.json", str(tmp_path / f"labelled.{form}"))
    truth = {"table": "label", "regression": "target"}[task]
    assert status == 0 and truth in labelled[0] and truth not in rows[0]
    assert [{k: v for k, v in row.items() if k != truth} for row in labelled] == rows


@pytest.mark.parametrize("labels", [["", "no"] * 3, ["maybe"] * 6])
def test_labels_that_the_model_does_not_know_are_not_read(tmp_path, labels):
    write_rows(tmp_path / "known.csv", table(20))
    run = trained(tmp_path / "o", "task=table", f"dataset.storage.path={tmp_path / 'known.csv'}",
                  "dataset.storage.label_column=answer")  # fmt: skip
    write_rows(tmp_path / "new.csv", table(6) | {"answer": labels})
    status, rows = predict(run, tmp_path / "a.json", f"dataset.storage.path={tmp_path / 'new.csv'}")
    assert status == 0 and len(rows) == 6 and "label" not in rows[0]


def test_folders_of_new_images_are_no_classes(classifier, tmp_path):
    for name in ("monday/1.png", "monday/deep/2.png", "cat/3.png", "4.png"):
        write_image(tmp_path / "new" / name)
    status, rows = predict(classifier, tmp_path / "a.json", str(tmp_path / "new"))
    assert status == 0
    assert [row["key"] for row in rows] == ["4.png", "cat/3.png", "monday/1.png",
                                            "monday/deep/2.png"]  # fmt: skip
    assert {row["class"] for row in rows} <= {"cat", "dog"}


def test_a_renamed_target_may_be_missing(tmp_path):
    write_rows(tmp_path / "known.csv", table(20))
    run = trained(tmp_path / "o", "task=regression", "dataset.keys={price:cost,answer:null}",
                  "dataset.decode.target=cost",
                  f"dataset.storage.path={tmp_path / 'known.csv'}")  # fmt: skip
    columns = table(6)
    write_rows(tmp_path / "new.csv", {name: columns[name] for name in ("size", "town")})
    status, rows = predict(run, tmp_path / "a.json", str(tmp_path / "new.csv"))
    assert status == 0 and len(rows) == 6 and "target" not in rows[0]


@pytest.mark.parametrize("engine", ["inline", "processes"])
def test_a_damaged_record_keeps_its_row(classifier, tmp_path, engine):
    for number in range(5):
        write_image(tmp_path / "new" / f"{number}.png", number)
    (tmp_path / "new" / "2.png").write_bytes(b"no image")
    workers = [f"loader.engine={engine}", *["loader.num_workers=2"] * (engine == "processes")]
    status, rows = predict(classifier, tmp_path / "a.json", str(tmp_path / "new"), *workers)
    assert status == 1
    assert [row["key"] for row in rows] == [f"{number}.png" for number in range(5)]
    assert [row["key"] for row in rows if row["error"]] == ["2.png"]
    assert [row["key"] for row in rows if row["score"] is None] == ["2.png"]
    assert rows[0].keys() == rows[2].keys()


def test_data_that_is_damaged_as_a_whole_has_its_rows(classifier, tmp_path):
    (tmp_path / "new").mkdir()
    for number in range(3):
        (tmp_path / "new" / f"{number}.png").write_bytes(b"no image")
    status, rows = predict(classifier, tmp_path / "a.json", str(tmp_path / "new"))
    assert status == 1 and [bool(row["error"]) for row in rows] == [True] * 3


def test_the_columns_of_a_file_do_not_depend_on_what_is_found(classifier, tmp_path):
    for number in range(4):
        write_image(tmp_path / "new" / f"{number}.png", number)
    schemas = []
    for name in ("a", "b"):
        output = tmp_path / f"{name}.parquet"
        main(["predict", f"checkpoint={classifier}", str(tmp_path / "new"), f"output={output}"])
        schemas.append(pq.read_schema(output))
        (tmp_path / "new" / "1.png").write_bytes(b"no image")
    assert schemas[0] == schemas[1]
    assert {"position", "key", "error", "class", "score"} <= {*schemas[0].names}
