"""The room of configs on public Hydra, which stands beside the old one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.pipeline.commands import bench  # noqa: F401 - registers its settings
from penstock.pipeline.composing.app import main
from penstock.pipeline.composing.overrides import quote, read_overrides
from penstock.pipeline.composing.sweep import check_sweep, read_points
from penstock.pipeline.config.errors import ConfigError

ROOM = Path(__file__).resolve().parents[2] / "pipeline/composing"


def test_it_uses_public_names_of_libraries_alone():
    private = re.compile(r"\b(hydra|omegaconf|pydantic)(\.\w+)*\._")
    assert [file.name for file in ROOM.glob("*.py") if private.search(file.read_text())] == []


@pytest.mark.parametrize(
    "value", ["s3://b/year=2024/x", "shard-{000..009}.tar", "~/x", "a b", "фото/a(1).jpg"]
)
def test_values_that_the_grammar_refuses_reach_the_config(value):
    [typed], problems = read_overrides([quote(f"dataset.storage.path={value}")])
    assert (typed.value, problems) == (value, [])


def test_a_typo_in_a_sweep_is_reported_once_before_a_job_starts():
    with pytest.raises(ConfigError) as caught:
        check_sweep(["sampler=random,weihgted", "loader.num_workerz=1", "seed=1,2,3"])
    assert [problem.key for problem in caught.value.problems].count("loader.num_workerz") == 1
    assert "sampler" in {problem.key for problem in caught.value.problems}


def test_the_points_of_a_command_are_the_product_of_its_values():
    points = read_points(["loader.num_workers=0,1", "seed=3"], command="bench")
    assert points.keys == ("loader.num_workers",)
    assert [each.config["loader"]["num_workers"] for each in points.points] == [0, 1]
    assert points.config_with("seed=4")["seed"] == 4


def test_a_failed_job_does_not_end_the_others(tmp_path, monkeypatch, data_dir, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["penstock"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    typed = ["-m", "optimizer.lr=nan,0.01", "debug=one_batch", f"data_dir={data_dir}"]
    assert main(typed) == 1
    said = capsys.readouterr()
    assert "job 0 failed:" in said.err and "job 1: optimizer.lr=0.01" in said.out
    assert len(list(tmp_path.glob("outputs/*/*/summary.json"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}
