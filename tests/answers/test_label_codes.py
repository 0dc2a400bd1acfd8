"""Whole numbers with large gaps are codes of classes; those from 0 up stay class ids."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import build_loader, compose

BASE = ["augment=as_is", "loader=inline", "dataset.val_fraction=0", "loader.drop_last=false"]
CODES = [100_000, 200_000, 5, 100_000, 200_000, 5]


def write(folder, form, labels):
    if form == "csv":
        rows = [f"{number},{label}" for number, label in enumerate(labels)]
        (folder / "set.csv").write_text("\n".join(["x,label", *rows]) + "\n")
    else:
        table = pa.table({"x": np.arange(len(labels)), "label": np.array(labels)})
        pq.write_table(table, folder / "set.parquet")
    return [f"dataset={form}", f"dataset.storage.path={folder / f'set.{form}'}",
            "dataset/decode=raw"]  # fmt: skip


def labels_of(typed):
    with build_loader(compose([*BASE, *typed])) as loader:
        pairs = [pair for b in loader for pair in zip(b["index"], b["label"], strict=True)]
        names = loader.dataset.index.class_names
    return [label for _, label in sorted((int(i), int(label)) for i, label in pairs)], names


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_codes_are_numbered_in_their_order_and_said(tmp_path, form, caplog):
    with caplog.at_level(logging.WARNING):
        ids, names = labels_of(write(tmp_path, form, CODES))
    assert ids == [1, 2, 0, 1, 2, 0] and tuple(names) == ("5", "100000", "200000")
    assert "200000" in caplog.text and "dataset.storage.classes" in caplog.text


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_listed_codes_have_the_ids_of_the_list(tmp_path, form):
    typed = [*write(tmp_path, form, CODES), 'dataset.storage.classes=["200000","100000","5"]']
    assert labels_of(typed) == ([1, 0, 2, 1, 0, 2], ("200000", "100000", "5"))


@pytest.mark.parametrize("labels", [[0, 1, 2, 2], [0, 3, 9], [7, 999], [*range(0, 4000, 3)]])
def test_class_ids_stay(tmp_path, labels):
    ids, names = labels_of(write(tmp_path, "csv", labels))
    assert ids == labels and tuple(names) == tuple(map(str, range(max(labels) + 1)))


def test_an_array_of_codes_is_refused_until_it_is_one_of_ids(tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((6, 4, 4, 3), np.uint8))
    np.save(tmp_path / "label.npy", np.array(CODES))
    typed = ["dataset=memmap", f"dataset.storage.path={tmp_path}"]
    with pytest.raises(ValueError, match="label 200000"):
        labels_of(typed)
    np.save(tmp_path / "label.npy", np.unique(np.array(CODES), return_inverse=True)[1])
    assert labels_of(typed)[0] == [1, 2, 0, 1, 2, 0]
