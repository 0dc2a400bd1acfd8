"""Sweeps by Hydra: checked before any job starts, and a failed job does not end the others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from penstock import compose
from penstock.pipeline.commands import bench  # noqa: F401 - registers its settings
from penstock.pipeline.commands.bench.points import read_points
from penstock.pipeline.config.app import main
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.sweep import check_sweep
from tests.console import penstock

PARTS = Path(__file__).resolve().parents[2] / "examples" / "my_components.py"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["penstock"])
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("HYDRA_FULL_ERROR", "PYTHONPATH"):  # a sweep sets them
        monkeypatch.setenv(name, "")
    yield tmp_path
    assert {path.name for path in tmp_path.iterdir()} <= {"outputs"}


@pytest.fixture
def jobs(folder, monkeypatch):
    """Collect the configs of the jobs instead of training with them."""
    ran = []

    def train(config):
        ran.append(config)
        match config["loader"]["batch_size"]:
            case 13:
                raise RuntimeError("unlucky")
            case 17:
                raise MemoryError("Unable to allocate 7 PiB")
            case 19:
                raise KeyboardInterrupt
        return {"monitor": "loss", "best/loss": abs(config["optimizer"]["lr"] - 0.03)}

    monkeypatch.setattr("penstock.pipeline.training.job.train", train)
    return ran


def test_every_combination_is_a_job(jobs, capsys):
    assert main(["-m", "sampler=random,weighted", "seed=1,2"]) == 0
    expected = [compose([f"sampler={sampler}", f"seed={seed}"])
                for sampler in ("random", "weighted") for seed in (1, 2)]  # fmt: skip
    assert jobs == expected
    assert "job 3: sampler=weighted seed=2" in capsys.readouterr().out


def test_ranges_lists_deletions_and_arguments_of_a_choice(jobs):
    typed = ["-m", "seed=range(1,4)", "~augment.train.flip", "callback=ema",
             "callback.ema.decay=0.5", "augment.train.crop.scale=[0.5,1],[0.9,1]",
             "sampler=weighted", "sampler.num_samples=3"]  # fmt: skip
    assert main(typed) == 0
    found = [(each["seed"], each["augment"]["train"]["crop"]["scale"][0]) for each in jobs]
    assert found == [(seed, scale) for seed in (1, 2, 3) for scale in (0.5, 0.9)]
    assert all("flip" not in each["augment"]["train"] for each in jobs)
    assert all(each["sampler"]["num_samples"] == 3 for each in jobs)


def test_a_failed_job_does_not_end_the_others(jobs, capfd):
    assert main(["-m", "loader.batch_size=17,64"]) == 1
    with pytest.raises(RuntimeError, match="unlucky"):
        main(["-m", "loader.batch_size=64,13,13,32"])
    assert [each["loader"]["batch_size"] for each in jobs] == [17, 64, 64, 13, 13, 32]
    said = capfd.readouterr().err
    assert "; lower loader.batch_size" in said and "job 2 failed: RuntimeError: unlucky" in said


def test_an_interrupt_ends_the_sweep(jobs, capfd):
    assert penstock("train", "-m", "loader.batch_size=64,19,32") == 130
    assert [each["loader"]["batch_size"] for each in jobs] == [64, 19]
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("sampler=random,weihgted loader.num_workerz=1 seed=1,2,3", "loader.num_workerz sampler"),
        ("sampler=weighted,random sampler.replacement=false seed=1,x", "sampler.replacement seed"),
        ("optimizer.lr=interval(0.01,0.1)", "optimizer.lr"),
        ("optimizer.lrr=1,2,3 loader.num_workers=0,1", "optimizer.lrr"),
        ("dataset.batchsize=1,2 seed=x,y", "dataset.batchsize seed seed"),
        ("seed=1,2 hydra.run.dir=x", "hydra.run.dir"),
        ("seed=1,2 +hydra.callbacks.x._target_=os.system", "hydra.callbacks.x._target_"),
    ],
)
def test_mistakes_are_reported_once_before_a_job_starts(typed, keys):
    with pytest.raises(ConfigError) as caught:
        check_sweep(typed.split())
    assert sorted(each.key for each in caught.value.problems) == sorted(keys.split())


@pytest.mark.parametrize(
    ("typed", "key"),
    [
        ("hydra/launcher=nope", "hydra/launcher"),
        ("hydra.launcher._target_=os.system", "hydra.launcher._target_"),
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher"),
        ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
        ("outputs=s3://me:secret@bucket/runs", "password"),
    ],
)
def test_a_sweep_that_cannot_run_is_refused_before_a_job(typed, key, jobs, capfd):
    assert penstock("train", "-m", "seed=1,2", typed) == 2
    said = capfd.readouterr().err
    assert key in said and "Traceback" not in said and "secret" not in said
    assert jobs == []


@pytest.mark.parametrize(
    "launcher",
    ["basic", "joblib", pytest.param("submitit_local", marks=pytest.mark.ecosystem)],
)
def test_launchers_run_real_jobs_with_components_of_ones_own(launcher, folder, data_dir):
    typed = [f"imports=[{PARTS}]", "sampler=repeated", "sampler.times=1,2", "loader=inline",
             "debug=one_batch", "optimizer.lr=nan,0.01", f"data_dir={data_dir}"]  # fmt: skip
    assert main(["-m", f"hydra/launcher={launcher}", *typed]) == 1
    ran = [yaml.safe_load(path.read_text()) for path in Path().glob("outputs/2*/*/config.yaml")]
    finished = [path.parent for path in Path().glob("outputs/2*/*/summary.json")]
    assert sorted(each["sampler"]["times"] for each in ran) == [1, 2] and len(finished) == 2


@pytest.mark.ecosystem
def test_optuna_searches_in_the_direction_of_the_watched_metric(jobs, capfd):
    typed = ["train", "-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=6", "seed=3"]
    interval = "optimizer.lr=interval(0.01,0.1)"
    for wrong in ([interval, "hydra.sweeper.direction=minimize"], ["loader=inline"]):
        assert penstock(*typed, *wrong) == 2 and jobs == []
    assert penstock(*typed, interval, "loader.batch_size=13,64") in (0, 1)
    assert len(jobs) == 6 and {each["seed"] for each in jobs} == {3}
    assert all(0.01 <= each["optimizer"]["lr"] <= 0.1 for each in jobs)


def test_the_points_of_a_command_are_the_product_of_its_values():
    typed = ["loader.num_workers=0,1", "loader=threads,torch", "seed=5", "seconds=0.5"]
    points = read_points(typed, command="bench")
    assert points.keys == ("loader.num_workers", "loader")
    loaders = [each.config["loader"] for each in points.points]
    values = [(loader["num_workers"], loader["engine"]) for loader in loaders]
    assert values == [(0, "threads"), (0, "torch"), (1, "threads"), (1, "torch")]
    assert all(each.config["bench"]["seconds"] == 0.5 for each in points.points)
    assert points.points[2].values == {"loader.num_workers": "1", "loader": "threads"}
    assert read_points(["loader.num_workers=3"], command="bench").keys == ()
