"""Tables from a file to a trained model: figures of the training part, the same for all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.datasets.demo import made_here
from penstock.datasets.demo.tables import COUNTS, STORAGES, TABLES, draw_table
from penstock.datasets.storages.checks import GENERATED
from penstock.pipeline.build import build_loader, open_storage
from penstock.pipeline.config.compose import compose
from penstock.pipeline.training.job import train

QUICK = ["trainer.progress=off", "trainer.num_threads=1", "loader.batch_size=64"]


def config_of(data_dir: Path, *overrides: str) -> dict:
    return compose([*QUICK, "task=table", f"data_dir={data_dir}", *overrides])


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tables")


def batches(config, split="train"):
    with build_loader(config, split) as loader:
        return list(loader), loader.table


def test_validation_is_scaled_by_the_training_part(data):
    train_batches, table = batches(config_of(data, "loader=inline", "loader.drop_last=false"))
    val_batches, val_table = batches(config_of(data, "loader=inline"), "val")
    assert table.statistics == val_table.statistics
    columns = draw_table("train")
    ages = np.array([np.nan if age is None else age for age in columns["age"]])
    age = table.statistics.numeric[0]
    assert (age.name, age.missing) == ("age", int(np.isnan(ages).sum()))
    assert age.mean == pytest.approx(np.nanmean(ages), rel=1e-12)
    assert age.std == pytest.approx(np.nanstd(ages), rel=1e-9)
    features = torch.cat([batch["features"] for batch in train_batches])
    assert features.shape == (COUNTS["train"], 4 + 2)  # age and area lack some
    there = features[:, 4] == 0
    assert features[there, 0].mean().abs() < 1e-5
    val = {key: n for batch in val_batches for key, n in zip(batch["key"], range(64), strict=False)}
    assert len(val) == COUNTS["val"]
    city = torch.cat([batch["categories"] for batch in val_batches])[:, 0]
    unknown = [n for n, name in enumerate(draw_table("val")["city"]) if name == "Atlantis"]
    assert torch.nonzero(city == 0).flatten().tolist() == unknown and unknown


def write_csv(path: Path, bad: str = "") -> Path:
    rows = [f"{n},{'a' if n % 3 else 'b'},{n % 2},{n * 2}" for n in range(200)]
    path.write_text("\n".join(["x,c,label,y", *rows, *([bad] if bad else [])]) + "\n")
    return path


def test_bad_rows_follow_the_policy(tmp_path):
    path = write_csv(tmp_path / "t.csv", bad="inf,a,1,3")
    overrides = [f"dataset.storage.path={path}", "dataset.val_fraction=0", "loader=inline"]
    config = config_of(tmp_path, *overrides, "loader.max_error_rate=0.5")
    with build_loader(config) as loader:
        assert all(batch["features"].isfinite().all() for batch in loader)
        while not loader.stats.bad_samples:
            list(loader)
        assert loader.stats.bad_samples
    with pytest.raises(ValueError, match="inf is not a finite number"):
        batches(config_of(tmp_path, *overrides, "loader.on_error=raise", "loader.drop_last=false"))
    with pytest.raises(ValueError, match="no column 'z'; columns: x, c, y"):
        batches(config_of(tmp_path, *overrides, "dataset.decode.numeric=[z]"))


def test_a_stream_needs_the_figures_of_a_run(data_dir):
    config = compose(
        [f"data_dir={data_dir}", "dataset=stream", "dataset/decode=table", "augment=as_is"]
    )
    with pytest.raises(ValueError, match=r"dataset\.decode\.statistics="):
        build_loader(config)


def test_generated_tables_are_made_for_some_storages(tmp_path):
    assert {"demo", "demo_sequences", "demo_sounds", *TABLES} == set(GENERATED)
    for storage in STORAGES:
        path = made_here("demo_prices", storage, tmp_path)
        assert made_here("demo_prices", storage, tmp_path) == path
        config = compose(["task=regression", f"dataset/storage={storage}", f"data_dir={tmp_path}",
                          "dataset.storage.path=demo_prices"])  # fmt: skip
        storage_of_train = open_storage(config, "train")
        [record] = storage_of_train.read(np.array([7]))
        assert record.fields["price"] == draw_table("train")["price"][7]
        assert "label" not in record.fields
    with pytest.raises(ValueError, match=r"'lmdb'.*storage=csv"):
        made_here("demo_table", "lmdb", tmp_path)


def test_a_resumed_run_refuses_other_figures(data, tmp_path):
    overrides = [f"outputs={tmp_path}", "trainer.max_epochs=1", "trainer.limit_train_batches=4"]
    run = Path(train(config_of(data, *overrides))["run_dir"])
    saved = json.loads((run / "table.json").read_text())
    assert saved["rows"] == COUNTS["train"]
    more = ["trainer.max_epochs=2", f"trainer.resume={run}"]
    saved["numeric"][0]["mean"] += 1
    (run / "table.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"other figures of its columns: table\.numeric"):
        train(compose(more))
    kept = [f"dataset.decode.statistics={run}/table.json", "trainer.resume_anyway=true"]
    assert train(compose([*more, *kept]))["epoch"] == 2
    assert json.loads((run / "table.json").read_text()) == saved


@pytest.mark.slow
@pytest.mark.parametrize(("task", "figure", "least"), [("table", "accuracy", 0.85),
                                                      ("regression", "r2", 0.9)])  # fmt: skip
def test_the_generated_tables_are_learned(data, tmp_path, task, figure, least):
    results = train(compose([*QUICK, f"task={task}", f"data_dir={data}", f"outputs={tmp_path}",
                             "trainer.max_epochs=6"]))  # fmt: skip
    assert results[f"val/{figure}"] > least
