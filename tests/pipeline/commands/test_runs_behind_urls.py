"""What takes a run or a checkpoint takes one at a URL, and says what it says of one on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import compose
from penstock.pipeline.commands import main
from penstock.pipeline.config.app import main as train_main
from penstock.pipeline.config.compose import configure
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.training import run_copy
from penstock.pipeline.training.job import train
from penstock.pipeline.training.run_folder import Outputs
from tests.laws.conftest import make_photos
from tests.object_store import BUCKET

QUICK = ["loader=inline", "loader.batch_size=4", "trainer.progress=off", "trainer.num_threads=1",
         "trainer.max_epochs=1", "augment.image_size=24"]  # fmt: skip
OUTPUTS = f"s3://{BUCKET}/runs"


@pytest.fixture
def store(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_copy, "_LOOK_S", 0.05)
    return store


@pytest.fixture
def run(store, tmp_path):
    make_photos(tmp_path / "photos", {"ash": 9, "birch": 6})
    data = store.put(tmp_path / "photos", "photos")
    url = train(compose([*QUICK, f"dataset.storage.path={data}", f"outputs={OUTPUTS}"]))["run_dir"]
    for key, content in store.files.items():
        path = tmp_path / "copy" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return url


def here(run):
    return Path("copy", run.removeprefix(f"s3://{BUCKET}/"))


def test_predict_and_evaluate(store, run, capsys):
    for command, name in (("predict", "a.csv"), ("evaluate", "a.json")):
        written = []
        for place in (run, f"{run}/checkpoints/best.pt", here(run)):
            typed = [f"checkpoint={place}", f"output={name}", "overwrite=true"]
            assert main([command, *typed]) == 0
            written.append(Path(name).read_text().replace(run, str(here(run))))
        assert written[0] == written[1] == written[2]
    web = f"{store.url}/{BUCKET}/{run.removeprefix(f's3://{BUCKET}/')}"
    assert main(["predict", f"checkpoint={web}", "output=a.csv", "overwrite=true"]) == 0
    first = Path("a.csv").read_text()
    keys = [key for key in store.files if key.startswith("photos/val/")]
    images = [f"s3://{BUCKET}/{key}" for key in keys]
    assert main(["predict", f"checkpoint={run}", "output=b.csv", *images]) == 0
    assert main(["predict", f"checkpoint={run}", "output=c.csv", f"s3://{BUCKET}/photos/val"]) == 0
    scores = [sorted(row.rpartition(",")[2] for row in Path(f"{n}.csv").read_text().splitlines())
              for n in "bc"]  # fmt: skip
    assert scores[0] == scores[1] and len(scores[0]) == len(first.splitlines()) == len(keys) + 1


def test_what_is_typed_is_told_in_a_line(store, run, capsys):
    store.files["alone.pt"] = b"none"
    for typed, said in (
        (["predict", f"checkpoint={OUTPUTS}/no"], f"'{OUTPUTS}/no' given, which no run has"),
        (["predict", "checkpoint=s3://bukkit/a"], "there is no such bucket"),
        (["predict", f"checkpoint=s3://me:word@{BUCKET}/a"], "the URL carries a password"),
        (["predict", f"checkpoint=s3://{BUCKET}/alone.pt"], "alone.pt is cut short or damaged"),
        (["predict", f"checkpoint={run}", "output=s3://bucket/a.csv"],
         "predict.output: 's3://bucket/a.csv' given, accepts a path of this machine"),
        (["runs", "path=s3://bukkit/a"], "there is no such bucket"),
        (["doctor", "outputs=https://host/runs"], "outputs: 'https://host/runs' given, accepts"),
    ):  # fmt: skip
        assert main(typed) in (1, 2)
        told = capsys.readouterr().err
        assert (
            said in told and "Traceback" not in told and "word" not in told.replace("password", "")
        )
    store.fault = lambda method, key: 403 if key.endswith("config.yaml") else None
    with pytest.raises(ConfigError, match="access is denied"):
        configure([f"trainer.resume={run}"])


def test_runs_and_a_resume_that_is_typed(store, run, capsys):
    assert main(["runs", f"path={OUTPUTS}"]) == 0
    out = capsys.readouterr().out
    assert f"{run} " in out and "done" in out and f"1 run below {OUTPUTS}" in out
    config = configure([f"trainer.resume={run}", "trainer.max_epochs=2"])
    assert config["augment"]["train"] and config["outputs"] == OUTPUTS
    assert train(config)["epoch"] == 2
    assert main(["runs", f"outputs={OUTPUTS}"]) == 0
    assert "2/2" in capsys.readouterr().out
    training = Outputs.at(OUTPUTS, telling=False).make()
    training.write_config({"trainer": {"max_epochs": 3}})
    training.flush(hurry=True)
    assert main(["runs", f"path={OUTPUTS}"]) == 0
    [row] = [row for row in capsys.readouterr().out.splitlines() if str(training) in row]
    assert row.split()[1:] == ["running", "0/3"]
    training.release()


def test_the_runs_of_a_sweep_lie_there(store, run, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["penstock"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    config = [*QUICK, f"dataset.storage.path=s3://{BUCKET}/photos", f"outputs={OUTPUTS}"]
    before = sum(key.endswith("/config.yaml") for key in store.files)
    assert train_main([*config, "-m", "optimizer.lr=0.01,0.02"]) == 0
    assert sum(key.endswith("/config.yaml") for key in store.files) == before + 2
    assert not list(Path().glob("s3*"))
