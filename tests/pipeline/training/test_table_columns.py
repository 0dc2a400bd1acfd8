"""Columns of a table that only tell the row are no features, and the run says what is."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from penstock import build_loader, compose
from penstock.pipeline.training import job

DAYS = [f"2024-{1 + n // 28 % 12:02d}-{1 + n % 28:02d}" for n in range(200)]


@pytest.fixture
def table(tmp_path) -> Path:
    """As pandas writes it, with its index, a number of the row, a date and two features."""
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "row", "day", "size", "kind", "label"])
        for n in range(200):
            kind = "ab"[n % 2]
            writer.writerow(
                [f"x{n}", n + 1, DAYS[n], (n * 37) % 101, kind, "yes" if n % 3 else "no"]
            )
    return path


def given(table: Path) -> list[str]:
    return ["task=table", f"dataset.storage.path={table}", "dataset.storage.label_column=label",
            "loader=inline", "loader.batch_size=16", f"outputs={table.parent / 'out'}"]  # fmt: skip


def test_row_numbers_dates_and_columns_without_a_name_are_left_out_and_said(table, capsys):
    run = job.train(compose([*given(table), "trainer.max_steps=1"]))
    said = capsys.readouterr().out
    assert "table numbers: size; categories: kind (2); left out: '' (unnamed), " in said
    assert "'row' (row numbers), 'day' (dates)" in said
    kept = json.loads(Path(run["run_dir"], "table.json").read_text())
    assert [name for name, _ in kept["left_out"]] == ["", "row", "day"]


def test_images_are_not_left_out_without_a_word(tmp_path):
    rows = [f"{n}.jpg,{n % 7},{n / 3}" for n in range(30)]
    for n in range(30):
        cv2.imwrite(str(tmp_path / f"{n}.jpg"), np.zeros((8, 8, 3), np.uint8))
    (tmp_path / "t.csv").write_text("\n".join(["picture,size,price", *rows]))
    chosen = ["task=regression", f"dataset.storage.path={tmp_path / 't.csv'}", "loader=inline",
              "dataset.decode.target=price", "loader.batch_size=4",
              "dataset.storage.image_column=picture"]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"image.*decode=table does not read; .*decode=image"
    ) as said:
        build_loader(compose(chosen))
    left_out = "dataset.keys={image:null}"
    assert left_out in str(said.value)
    with build_loader(compose([*chosen, left_out])) as loader:
        assert next(iter(loader))["features"].shape == (4, 1)


def test_who_names_them_gets_them(table):
    named = ["dataset.decode.numeric=[row]", "dataset.decode.categorical=[day]"]
    with build_loader(compose([*given(table), *named])) as loader:
        batch = next(iter(loader))
        assert [each.name for each in loader.table.statistics.numeric] == ["row", "size"]
    assert batch["features"].shape[1] == 2 and batch["categories"].shape[1] == 2
