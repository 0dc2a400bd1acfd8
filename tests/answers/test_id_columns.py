"""Text columns that differ from row to row become features only where the config names them."""

import csv

import pytest

from penstock import build_loader, compose, train

ROWS = 60


@pytest.fixture
def people(tmp_path):
    with open(tmp_path / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "ticket", "city", "age", "label"])
        for row in range(ROWS):
            ticket = f"T{row - row % 10 // 9}"  # nearly unique: every tenth row repeats the last
            writer.writerow([f"Name {row}", ticket, f"C{row % 4}", 20.5 + row % 7, row % 2])
    return ["dataset=csv", f"dataset.storage.path={tmp_path / 't.csv'}"]


def _categories(people, *more):
    fixed = ["dataset/decode=table", "dataset.val_fraction=0", "augment=as_is"]
    with build_loader(
        compose([*people, *fixed, "loader.batch_size=8", "loader.num_workers=0", *more]), "train"
    ) as loader:
        return next(iter(loader))["categories"].shape[1]


def test_names_and_tickets_are_left_out(people):
    assert _categories(people) == 1


def test_a_named_column_is_kept(people):
    assert _categories(people, "dataset.decode.categorical=[ticket]") == 2


def test_few_rows_keep_their_categories(people, tmp_path):
    (tmp_path / "t.csv").write_text("city,age,label\na,1.5,0\nb,2.5,1\nc,0.5,0\n")
    assert _categories(people, "loader.batch_size=3") == 1


def test_the_log_names_them(people, tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    short = ["trainer.max_steps=1", "loader.batch_size=8", "loader.num_workers=0"]
    with pytest.raises(SystemExit) as end:
        train(["task=table", *people, *short, "trainer.device=cpu"])
    assert end.value.code == 0
    lines = "".join((*capfd.readouterr(), caplog.text)).splitlines()
    said = [line for line in lines if "'name'" in line]
    assert said and "'ticket'" in said[0] and "'city'" not in said[0]
