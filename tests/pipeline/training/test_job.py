"""A training run from its config to its folder: what it leaves, repeats and refuses."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml

from penstock.pipeline.training import job, parts
from tests.pipeline.training.tiny_job import config_of
from tests.pipeline.training.tiny_runs import (
    assert_equal_weights,
    assert_near,
    checkpoint,
    rows,
    the_folder,
    weights,
)

pytestmark = pytest.mark.usefixtures("tiny_parts")


def test_a_run_leaves_what_it_should(tmp_path, capsys):
    results = job.train(config_of(tmp_path))
    folder = Path(results["run_dir"])
    assert folder == the_folder(tmp_path)
    assert {p.name for p in folder.iterdir()} >= {
        "config.yaml", "log.txt", "metrics.csv", "timings.csv", "checkpoints", "summary.json",
    }  # fmt: skip
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {
        "last.pt", "previous.pt", "best.pt",
    }  # fmt: skip
    assert yaml.safe_load((folder / "config.yaml").read_text())["tiny"]["samples"] == 45
    summary = json.loads((folder / "summary.json").read_text())
    times = summary.pop("times")
    assert summary == results
    for split in ("train", "val"):
        assert times[split]["data_wait"] + times[split]["compute"] == pytest.approx(1)
    assert results["val/accuracy"] > 0.6 and results["step"] == 18
    table = rows(folder)
    assert [row["step"] for row in table] == ["3", "6", "6", "9", "12", "12", "15", "18", "18"]
    assert [bool(row["val/accuracy"]) for row in table] == [False, False, True] * 3
    assert not [name for name in table[0] if "time" in name or "samples" in name]
    printed = capsys.readouterr().out
    for part in (
        "batch 8",
        "input ",
        "parameters",
        "samples/s",
        "waiting for data",
        "bad samples",
        "3 clas",
    ):
        assert part in printed
    assert str(folder) in printed


def test_two_runs_give_the_same_bytes(tmp_path):
    folders = [Path(job.train(config_of(tmp_path))["run_dir"]) for _ in range(2)]
    assert folders[0] != folders[1]
    assert (folders[0] / "metrics.csv").read_bytes() == (folders[1] / "metrics.csv").read_bytes()
    assert_equal_weights(weights(folders[0]), weights(folders[1]))


def test_accumulating_equals_the_big_batch(tmp_path):
    # 45 samples: the last big batch has 13 rows, so the last two small ones are of unequal size.
    big = config_of(tmp_path, {"max_epochs": 2}, dropout=0.0, bad_positions=[1, 2, 3, 9])
    small = json.loads(json.dumps(big))
    big["loader"]["batch_size"] = 16
    small["trainer"]["accumulate"] = 2
    one, other = (Path(job.train(config)["run_dir"]) for config in (big, small))
    assert_near(weights(one), weights(other))
    assert [r["step"] for r in rows(one)] == [r["step"] for r in rows(other)]


def test_a_loss_that_is_not_finite_stops_or_skips(tmp_path):
    wild = {"max_epochs": 2, "clip_norm": None, "checkpoint_every": 1}
    with pytest.raises(ValueError, match=r"^the loss is (nan|inf) at or before step \d+ .*skip$"):
        job.train(config_of(tmp_path, wild, lr=1e25, momentum=0.0))
    state = checkpoint(the_folder(tmp_path))
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())


def test_overfitting_uses_the_same_batches(tmp_path):
    trainer = {"overfit_batches": 2, "max_epochs": 30, "log_every": 1}
    results = job.train(config_of(tmp_path, trainer, dropout=0.0))
    assert results["step"] == 60 and results["val/accuracy"] == 1.0


def test_limits_of_batches(tmp_path):
    trainer = {"limit_train_batches": 2, "limit_val_batches": 1, "max_epochs": 2}
    results = job.train(config_of(tmp_path, trainer))
    assert results["step"] == 4
    assert round(results["val/accuracy"] * 8) == pytest.approx(results["val/accuracy"] * 8)


def test_no_batches_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"no batches: .*loader.batch_size \(8\); lower it"):
        job.train(config_of(tmp_path, samples=5, drop_last=True))


def test_a_step_whose_loss_is_not_finite_can_be_skipped(tmp_path, monkeypatch):
    from tests.pipeline.training.tiny_job import TinyLoader

    row = TinyLoader.row

    def poisoned(self, position):
        image, label = row(self, position)
        return (image * float("nan") if position == 9 and self.training else image), label

    monkeypatch.setattr(TinyLoader, "row", poisoned)
    results = job.train(config_of(tmp_path, {"on_nonfinite": "skip"}))
    assert results["step"] == 18 and results["val/accuracy"] > 0.5
    with pytest.raises(ValueError, match="the loss is nan at or before step 2 "):
        job.train(config_of(tmp_path))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"monitor": "acuracy"}, "is 'acuracy', and the task gives accuracy, loss; type "
                                 "trainer.monitor=accuracy$"),
        ({"device": "mps"}, "is 'mps', expected auto, cpu, cuda or cuda:<n>; type "
                            "trainer.device=cpu$"),
        ({"device": "meta"}, "type trainer.device=cpu$"),
        ({"device": "cuda:99"}, "cuda:99 is not there, torch sees .; type trainer.device=c"),
    ],
)  # fmt: skip
def test_what_is_known_to_be_wrong_is_told_before_there_is_a_folder(
    tmp_path, monkeypatch, trainer, said
):
    monkeypatch.setattr(parts, "build_loader", None)  # no data is read
    config = config_of(tmp_path / "outputs", trainer)
    with pytest.raises(ValueError, match=said):
        job.train({**config, "dataset": {"_target_": "dataset/map"}})
    assert not (tmp_path / "outputs").exists()


def test_a_run_that_never_began_leaves_no_folder(tmp_path, monkeypatch):
    done = job.train(config_of(tmp_path))["run_dir"]
    with monkeypatch.context() as patch:
        patch.setattr(parts, "build_loader", lambda *_, **__: open("no such data"))
        with pytest.raises(FileNotFoundError):
            job.train(config_of(tmp_path))
        with pytest.raises(FileNotFoundError):
            job.train(config_of(tmp_path / "other"))
    assert [str(path) for path in tmp_path.glob("*/*")] == [done]
    assert list((tmp_path / "other").iterdir()) == []


def test_an_epoch_has_a_line_and_the_best_one_is_named_at_the_end(tmp_path, capsys):
    results = job.train(config_of(tmp_path, {"max_epochs": 4, "log_every": 2}, lr=0.15))
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("epoch ") and "lr" in line]
    assert [line.split("  ")[0] for line in lines] == [f"epoch {n}/4" for n in (1, 2, 3, 4)]
    folder = Path(results["run_dir"])
    validated = [row for row in rows(folder) if row["val/accuracy"]]
    for line, row in zip(lines, validated, strict=True):
        assert f"val loss {float(row['val/loss']):.4g}  accuracy" in line
        assert re.search(r"train loss [\d.]+  .*lr [\d.e-]+  \d+ s", line)
    first = [float(row["train/loss"]) for row in rows(folder)[:3]]
    assert f"train loss {sum(first) / 3:.4g}" in lines[0]
    best = max(validated, key=lambda row: float(row["val/accuracy"]))
    assert results["best_epoch"] == int(best["epoch"]) + 1
    assert checkpoint(folder, "best.pt")["state"]["best_epoch"] == results["best_epoch"]
    assert results["best/accuracy"] == float(best["val/accuracy"])
    assert lines[results["best_epoch"] - 1].endswith("  best")
    end = f"of epoch {results['best_epoch']}" if results["best_epoch"] < 4 else "the best epoch"
    assert end in out
