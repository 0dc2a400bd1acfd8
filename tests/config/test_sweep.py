"""Sweeps: all jobs checked first, each run with its own config, a table at the end."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

from penstock.pipeline.config.command_line import main

JOB = """
import json
def train(config):
    with open("seen.jsonl", "a") as out:
        out.write(json.dumps(config) + "\\n")
    if config["loader"]["batch_size"] == 13:
        raise RuntimeError("unlucky")
    if config["loader"]["batch_size"] == 17:
        raise MemoryError("Unable to allocate 7 PiB")
    if config["seed"] == 99:
        raise KeyboardInterrupt
    if config["seed"] == 98:
        raise SystemExit(143)
    return {"accuracy": config["seed"] / 10, "run_dir": "r"}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep_job.py").write_text(JOB)
    yield tmp_path


def seen(folder) -> list[dict]:
    file = folder / "seen.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_every_combination_is_a_job(folder, capsys):
    from penstock.pipeline.config.composition import compose

    assert main("sweep_job.train", ["-m", "sampler=random,weighted", "seed=1,2"]) == 0
    expected = [
        compose([f"sampler={sampler}", f"seed={seed}"])
        for sampler in ("random", "weighted")
        for seed in (1, 2)
    ]
    assert seen(folder) == expected
    out = capsys.readouterr().out
    assert "4 jobs" in out and "weighted" in out and "accuracy" in out
    assert not (folder / "multirun.yaml").exists()


def test_the_first_rank_alone_prints_the_table(folder, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main("sweep_job.train", ["-m", "seed=1,2", "loader.batch_size=12"]) == 0
    assert len(seen(folder)) == 2
    assert capsys.readouterr().out == ""


def test_a_value_that_only_one_option_takes_is_found_before_the_first_job(folder, capsys):
    arguments = ["-m", "sampler=weighted,random", "sampler.replacement=false", "seed=1,x"]
    assert main("sweep_job.train", arguments) == 2
    assert seen(folder) == []
    error = capsys.readouterr().err
    assert error.count("sampler.replacement") == 2  # the line and what to type
    assert error.count("seed: 'x' given") == 1


def test_the_trap_of_a_swept_group_with_a_value_of_its_options(folder):
    assert main("sweep_job.train", ["-m", "sampler=weighted", "sampler.num_samples=3,4"]) == 0
    assert [config["sampler"]["num_samples"] for config in seen(folder)] == [3, 4]


def test_the_table_fits_80_columns_with_the_best_first_and_a_file_has_all(
    folder, capsys, monkeypatch
):
    (folder / "sweep_job.py").write_text(
        "def train(config):\n"
        "    if config['seed'] == 3:\n        raise ValueError('no such luck')\n"
        "    best = {1: 0.5, 2: 0.75}[config['seed']]\n"
        "    return {'monitor': 'accuracy', 'best/accuracy': best, 'best_epoch': 4,\n"
        "            'val/accuracy': 0.25, 'run_dir': 'x' * 90}\n"
    )
    monkeypatch.delitem(sys.modules, "sweep_job", raising=False)
    assert main("sweep_job.train", ["-m", "seed=1,2,3", "trainer.max_epochs=7"]) == 1
    out = capsys.readouterr().out
    for seed in (1, 2, 3):  # each job says what it is
        assert re.search(rf"job {seed - 1}: .*\bseed={seed}\b.*max_epochs=7|max_epochs=7 .*", out)
    table = out[out.index("3 jobs, the best first") :].splitlines()
    rows = [line.split() for line in table if line[:4].strip().isdigit()]
    assert rows == [["1", "2", "0.75", "4", "0.25"], ["0", "1", "0.5", "4", "0.25"], ["2", "3"]]
    assert max(map(len, table[:-2])) <= 80
    assert "job 2 failed: ValueError: no such luck" in out
    [file] = folder.glob("outputs/*/sweep-*.csv")
    with file.open() as text:
        written = list(csv.DictReader(text))
    assert [row["seed"] for row in written] == ["1", "2", "3"]
    assert written[1]["run_dir"] == "x" * 90 and written[2]["error"] == "ValueError: no such luck"


def test_a_failed_job_stops_no_other(folder, capsys):
    assert main("sweep_job.train", ["-m", "loader.batch_size=13,64"]) == 1
    assert [config["loader"]["batch_size"] for config in seen(folder)] == [13, 64]
    captured = capsys.readouterr()
    assert "RuntimeError: unlucky" in captured.out
    assert "Traceback" in captured.err


def test_a_job_without_memory_is_a_line_of_what_to_lower(folder, capsys):
    assert main("sweep_job.train", ["-m", "loader.batch_size=17,64"]) == 1
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    [line] = [line for line in captured.out.splitlines() if "7 PiB" in line]
    assert line.startswith("job 0 failed: MemoryError: memory ran out at")
    assert "; lower loader.batch_size" in line


def test_the_best_job_is_a_command_that_trains_it_again(tmp_path, data_dir, monkeypatch, capsys):
    """A real sweep; what it prints is given to a shell as it stands."""
    monkeypatch.chdir(tmp_path)

    def typed(line: str) -> str:
        """Run what a shell makes of a line behind `penstock train`; give what is printed."""
        shell = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {line}"], text=True, capture_output=True, check=True
        )
        arguments = shell.stdout.split("\0")[:-1]
        assert main("penstock.pipeline.training.job.train", arguments) == 0
        return capsys.readouterr().out

    def config_of(run: str) -> dict:
        saved = yaml.safe_load((tmp_path / run / "config.yaml").read_text())
        return {key: value for key, value in saved.items() if key != "trainer"}

    out = typed(
        f"-m optimizer.lr=10,0.001 'run.name=\"a $b\"' 'run.tags=[x, y]' "
        f"debug=one_batch trainer.max_steps=3 trainer.monitor=loss trainer.progress=off "
        f"trainer.num_threads=1 augment=none loader=inline data_dir={shlex.quote(str(data_dir))}"
    )
    rows = [line.split() for line in out.splitlines() if line[:4].strip() in ("0", "1")]
    [line] = [line for line in out.splitlines() if line.startswith("best: ")]
    [run] = [line.split()[-1] for line in out.splitlines() if line.startswith("its run: ")]
    assert f"optimizer.lr={rows[0][1]}" in line and rows[0][1] == "0.001"
    assert config_of(run)["optimizer"]["lr"] == 0.001
    again = typed(line.removeprefix("best: penstock train"))
    [other] = [line.split()[-1] for line in again.splitlines() if line.startswith("outputs ")]
    assert other != run and config_of(other) == config_of(run)
    assert config_of(run)["run"]["name"] == "a $b"


@pytest.mark.parametrize("worst", ["float('nan')", "None"])
def test_without_a_figure_no_job_is_the_best(folder, capsys, monkeypatch, worst):
    (folder / "sweep_job.py").write_text(
        f"def train(config):\n"
        f"    return {{'monitor': 'loss', 'monitor_mode': 'min', 'run_dir': str(config['seed']),\n"
        f"            'best/loss': {worst} if config['seed'] else 0.5}}\n"
    )
    monkeypatch.delitem(sys.modules, "sweep_job", raising=False)
    assert main("sweep_job.train", ["-m", "seed=1,2"]) == 0
    assert "best: " not in capsys.readouterr().out
    assert main("sweep_job.train", ["-m", "seed=1,0"]) == 0
    assert "best: penstock train seed=0\nits run: 0\n" in capsys.readouterr().out


@pytest.mark.parametrize(("seed", "status"), [(99, 130), (98, 143)])
def test_a_stopped_sweep_prints_its_table_and_how_it_goes_on(folder, capsys, seed, status):
    swept = f"seed=3,{seed},4"
    assert main("sweep_job.train", ["-m", swept, "run.name='a b'"]) == status
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "Traceback" not in said.err and "0.3" in said.out
    assert "stopped in job 1 of 3; it goes on, and the others begin, with" in lines
    typed = [shlex.split(line) for line in lines if line.startswith("  penstock train ")]
    assert [words[-1] for words in typed] == ["trainer.resume=auto", "run.name='a b'"]
    assert [config["seed"] for config in seen(folder)] == [3, seed]
    assert main("sweep_job.train", typed[1][2:]) == 0
    assert (seen(folder)[-1]["seed"], seen(folder)[-1]["run"]["name"]) == (4, "a b")
    [file] = folder.glob("outputs/*/sweep-*.csv")
    with file.open() as text:
        assert [row["accuracy"] for row in csv.DictReader(text)] == ["0.3", "", ""]


def test_ranges_lists_and_deletions(folder):
    arguments = ["-m", "seed=range(1,4)", "~augment.train.flip",
                 "augment.train.crop.scale=[0.5,1],[0.9,1]"]  # fmt: skip
    assert main("sweep_job.train", arguments) == 0
    configs = seen(folder)
    assert len(configs) == 6
    assert all("flip" not in config["augment"]["train"] for config in configs)
    assert configs[1]["augment"]["train"]["crop"]["scale"] == [0.9, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hydra/launcher=nope"], "hydra/launcher"),
        (["hydra.launcher._target_=os.system"], "is no launcher"),
        (["hydra.run.dir=x"], "hydra"),
        (["hydra.run.dir=x"], "type outputs=<folder>"),
        (["+hydra.callbacks.x._target_=os.system"], "only hydra/launcher"),
    ],
)
def test_hydras_own_config_can_name_launchers_alone(folder, capsys, arguments, said):
    assert main("sweep_job.train", ["-m", "seed=1,2", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert seen(folder) == []


def test_a_launcher_that_is_not_installed_names_its_extra(folder, capsys):
    if find_spec("hydra_plugins.hydra_submitit_launcher"):
        pytest.skip("it is installed")
    arguments = ["-m", "seed=1,2", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu"]
    assert main("sweep_job.train", arguments) == 2
    assert "is missing (the extra submitit); run: pip install 'hydra-sub" in capsys.readouterr().err


def test_the_joblib_launcher_runs_the_same_jobs(folder):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    arguments = ["-m", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    assert main("sweep_job.train", arguments) == 0
    assert sorted(config["seed"] for config in seen(folder)) == [1, 2]


def test_components_of_ones_own_are_swept_too(folder):
    (folder / "swept_parts.py").write_text(
        "from penstock.core.registry import register\n"
        "@register('sampler', 'swept')\n"
        "class Swept:\n    '''x'''\n    def __init__(self, n: int, *, width: int = 1): ...\n"
    )
    arguments = ["-m", "imports=[swept_parts.py]", "sampler=swept", "sampler.width=1,2"]
    assert main("sweep_job.train", arguments) == 0
    assert [config["sampler"]["width"] for config in seen(folder)] == [1, 2]
