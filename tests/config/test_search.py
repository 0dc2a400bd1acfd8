"""Searches by Optuna: checked before the first job, told what is better, a table at the end."""

from __future__ import annotations

import json
import shlex

import pytest

from penstock.pipeline.config.command_line import main
from penstock.pipeline.config.sweeps import search

JOB = """
import json
def watched(config):
    return "loss", "min"
def train(config):
    lr = config["optimizer"]["lr"]
    with open("seen.jsonl", "a") as out:
        out.write(json.dumps([lr, config["sampler"]["_target_"], config["seed"]]) + "\\n")
    if config["loader"]["batch_size"] == 13:
        raise RuntimeError("unlucky")
    if config["seed"] == 99:
        raise KeyboardInterrupt
    loss = abs(lr - 0.03) + (config["sampler"]["_target_"] != "sampler/random")
    mode = "max" if config["seed"] == 98 else "min"
    return {"monitor": "loss", "monitor_mode": mode, "best/loss": loss, "best_epoch": 1,
            "run_dir": str(lr)}
"""
SEARCH = ["-m", "hydra/sweeper=optuna", "hydra.sweeper.n_trials=6",
          "optimizer.lr=interval(0.01,0.1)", "sampler=random,sequential"]  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "search_job.py").write_text(JOB)
    return tmp_path


def seen(folder):
    file = folder / "seen.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def refused(capsys, *overrides: str) -> str:
    assert main("search_job.train", [*SEARCH, *overrides]) == 2
    return capsys.readouterr().err


def test_without_the_package_it_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setattr(search, "find_spec", lambda name: None)
    said = refused(capsys)
    assert "hydra-optuna-sweeper is missing (the extra optuna); run: pip install 'hydra-o" in said


def test_an_interval_is_searched_by_optuna_alone(folder, capsys):
    assert main("search_job.train", ["-m", "optimizer.lr=interval(0.01,0.1)"]) == 2
    assert "or search in it: hydra/sweeper=optuna" in capsys.readouterr().err


@pytest.mark.ecosystem
class TestOptuna:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("optuna")

    def test_it_finds_the_best_of_the_figure_that_decides(self, folder, capsys):
        assert main("search_job.train", [*SEARCH, "seed=3"]) == 0
        tried, out = seen(folder), capsys.readouterr().out
        assert len(tried) == 6 and {seed for *_, seed in tried} == {3}
        assert all(0.01 <= lr <= 0.1 for lr, *_ in tried)
        best = min(tried, key=lambda each: abs(each[0] - 0.03) + (each[1] != "sampler/random"))
        assert "6 jobs, the best first" in out and "best loss" in out
        rows = [line.split() for line in out.splitlines() if line[:3].strip().isdigit()]
        assert rows[0][1] == str(best[0])
        [typed] = [line for line in out.splitlines() if line.startswith("best: ")]
        assert main("search_job.train", shlex.split(typed)[3:]) == 0
        assert seen(folder).pop() == best and len(seen(folder)) == 7
        (folder / "seen.jsonl").write_text("")
        assert len([*folder.glob("outputs/*/sweep-*.csv")]) == 1
        assert not [*folder.rglob("optimization_results.yaml")]
        assert main("search_job.train", [*SEARCH, "seed=3"]) == 0
        assert seen(folder) == tried  # the seed of the config is the search's

    def test_mistakes_are_told_before_the_first_job(self, folder, capsys):
        said = refused(capsys, "seed=x", "hydra.sweeper.direction=maximize")
        assert "seed: 'x' given" in said
        said = refused(capsys, "loader.batch_size=interval(0,8)")
        assert "loader.batch_size: 0.0 given" in said
        said = refused(capsys, "hydra.sweeper.direction=maximize")
        assert "of loss minimize is better; leave it away, or type trainer.monitor_mode=max" in said
        said = refused(capsys, "hydra.sweeper.custom_search_space=os.system")
        assert "custom_search_space: only null is accepted" in said
        only = [text for text in SEARCH if "lr" not in text and "sampler" not in text]
        assert main("search_job.train", only) == 2
        assert "nothing is searched; type an interval" in capsys.readouterr().err
        assert seen(folder) == []

    def test_jobs_that_fail_are_in_the_table(self, folder, capsys):
        assert main("search_job.train", [*SEARCH, "loader.batch_size=13"]) == 1
        out = capsys.readouterr().out
        assert out.count("failed: RuntimeError: unlucky") == 6

    def test_a_search_that_is_stopped_shows_what_it_has(self, folder, capsys):
        assert main("search_job.train", [*SEARCH, "seed=99"]) == 130
        assert "stopped;" in capsys.readouterr().out
        assert main("search_job.train", [*SEARCH, "seed=98"]) == 1
        assert "search took minimize; type trainer.monitor=loss" in capsys.readouterr().err
