"""Resumed runs: a run's own config, changed by values and never composed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import penstock.pipeline.commands.evaluate
import penstock.pipeline.commands.predict  # noqa: F401 - the same
from penstock.pipeline.config.compose import compose, configure
from penstock.pipeline.config.errors import ConfigError

OWN = ["sampler=weighted", "augment=light", "augment.image_size=48"]


@pytest.fixture
def run_dir(tmp_path):
    make_run(tmp_path, OWN)
    return tmp_path


def make_run(folder: Path, overrides: list[str], *, checkpoint: bool = True) -> None:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(compose(overrides), sort_keys=False))
    if checkpoint:
        (folder / "checkpoints" / "last.pt").touch()


def saved_in(folder: Path) -> dict:
    return yaml.safe_load((folder / "config.yaml").read_text())


def change(folder: Path, **changed) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump({**saved_in(folder), **changed}))


def problems_of(overrides: list[str], command: str | None = None) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        configure(overrides, command=command)
    return {problem.key: problem.message for problem in caught.value.problems}


def test_the_saved_config_runs(run_dir):
    saved = saved_in(run_dir)
    for path in (run_dir, run_dir / "checkpoints" / "last.pt"):
        config = compose([f"trainer.resume={path}"])
        assert config == {**saved, "trainer": {**saved["trainer"], "resume": str(path)}}
    assert compose(["trainer.resume=auto"])["trainer"]["resume"] == "auto"
    assert compose(["trainer.resume=null"])["trainer"]["resume"] is None


def test_values_are_changed_and_checked(run_dir):
    resume = f"trainer.resume={run_dir}"
    config = compose([resume, "trainer.max_epochs=7", "loader.num_workers=0"])
    assert (config["trainer"]["max_epochs"], config["loader"]["num_workers"]) == (7, 0)
    assert config["sampler"]["_target_"] == "sampler/weighted"
    wrong = ["loader.num_worker=3", "sampler=random", "augment.image_size=32", "typo=3"]
    assert {*problems_of([resume, *wrong])} == {each.partition("=")[0] for each in wrong}


@pytest.mark.parametrize("key", ["trainer.resume", "predict.checkpoint"])
def test_a_strangers_run_executes_nothing_that_was_not_named(run_dir, key):
    done = run_dir / "it was run"
    module = run_dir / f"strange_parts_{key.partition('.')[0]}.py"
    module.write_text(f"open({str(done)!r}, 'w').close()\n")
    change(run_dir, imports=[str(module)])
    given = [f"{key}={run_dir}", f"predict.checkpoint={run_dir}"]
    said = problems_of(given, "predict")
    assert [*said] == ["imports"] and not done.exists()
    [typed] = re.findall(r"type (imports=\S+)", said["imports"])
    assert configure([*given, typed], command="predict")["imports"] == [str(module)]
    assert done.exists()


@pytest.mark.parametrize("key", ["trainer.resume", "predict.checkpoint"])
def test_a_command_has_its_settings_beside_a_saved_config(run_dir, key):
    path = run_dir / "checkpoints" / "last.pt"
    config = configure([f"predict.checkpoint={path}", f"{key}={run_dir}"], command="predict")
    assert config["predict"]["_target_"] == "settings/predict"
    assert config["predict"]["output"] == "predictions.parquet"
    assert config["sampler"]["_target_"] == "sampler/weighted"
    (run_dir / "alone.pt").touch()
    for name in ("config.yaml", "checkpoints/last.pt"):
        (run_dir / name).unlink()
    config = configure([f"predict.checkpoint={run_dir / 'alone.pt'}"], command="predict")
    assert config["sampler"]["_target_"] == "sampler/random", "a checkpoint outside of a run"


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_missing_run_is_answered_with_the_newest_one(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    key, newest = f"{command}.checkpoint", "outputs/2026-02-01/08-00-00"
    assert [*problems_of([], command)] == [key]
    for name in ("2026-01-31/23-59-59", "2026-02-01/08-00-00", "2026-02-01/09-00-00"):
        make_run(tmp_path / "outputs" / name, [], checkpoint="09-00" not in name)
    for given in ([], ["checkpoint=outputs/nope"]):
        said = problems_of(given, command)[key]
        assert said.endswith(f"; type checkpoint={newest}")
    assert configure([f"checkpoint={newest}"], command=command)[command]["checkpoint"]
    said = problems_of(["trainer.resume=outputs/nope"])["trainer.resume"]
    assert said.endswith(f"; type trainer.resume={newest}")
    assert "type " not in problems_of(["checkpoint=nope", "outputs=elsewhere"], command)[key]


def test_the_runs_own_command_line_resumes_it(run_dir):
    resume = f"trainer.resume={run_dir}"
    expected = compose([resume])
    assert compose([*OWN, resume]) == expected
    changed = compose([*OWN, resume, "trainer.max_epochs=20", "loader=threads"])
    assert changed["trainer"] == {**expected["trainer"], "max_epochs": 20}
    assert changed["loader"]["engine"] == "threads" != expected["loader"]["engine"]
    assert {**changed, "trainer": 0, "loader": 0} == {**expected, "trainer": 0, "loader": 0}
    change(run_dir, trainer={**expected["trainer"], "resume": None, "max_epochs": 3})
    config = compose(["sampler=weighted", "augment.image_size=48", resume])
    assert config["trainer"]["max_epochs"] == 3, "what may differ and is not typed stays"


@pytest.mark.parametrize(
    "typed",
    ["task=detection dataset=lmdb", "augment=none callback=ema", "dataset=stream", "task=multi",
     "dataset=mix dataset.sources.a.dataset=lmdb dataset.sources.b.dataset=zip",
     "dataset/cache=ram loader=threads logger=tensorboard callback=[profile,ema]"],
)  # fmt: skip
def test_the_same_options_make_the_same_config(typed, tmp_path):
    make_run(tmp_path, typed.split())
    config = compose([*typed.split(), f"trainer.resume={tmp_path}"])
    config["trainer"]["resume"] = None
    assert config == saved_in(tmp_path)


@pytest.mark.parametrize(
    ("typed", "key", "left_out"),
    [(["sampler=random", "augment.image_size=48"], "sampler", "sampler=random"),
     (["sampler=weighted", "augment=imagenet"], "augment", "augment=imagenet"),
     (["augment=as_is"], "augment", "augment=as_is"), (["logger=null"], "logger", "logger=null"),
     (["~scheduler"], "scheduler", "~scheduler")],
)  # fmt: skip
def test_options_of_another_run_are_refused(typed, key, left_out, run_dir):
    [[found, message]] = problems_of([*typed, f"trainer.resume={run_dir}"]).items()
    assert found == key and f"leave {left_out} away" in message


@pytest.mark.parametrize("typed", [[], OWN])
def test_watching_callbacks_loggers_and_names_may_change(typed, run_dir):
    stopping = {"_target_": "callback/early_stopping", "patience": 3, "min_delta": 0.5}
    mlflow = {"_target_": "logger/mlflow", "experiment": "owls", "tracking_uri": None}
    called = {"_target_": "settings/run", "name": "a", "tags": ["b"]}
    change(run_dir, callback={"early_stopping": stopping}, logger={"mlflow": mlflow}, run=called)
    own = [f"trainer.resume={run_dir}", *typed]
    config = compose([*own, "callback=profile", "callback.profile.active=5"])
    assert config["callback"]["early_stopping"] == stopping
    assert config["callback"]["profile"]["active"] == 5
    assert config["logger"]["mlflow"] == mlflow and config["run"] == called
    patient = compose([*own, "callback=early_stopping", "callback.early_stopping.patience=9"])
    assert patient["callback"]["early_stopping"] == {**stopping, "patience": 9}
    config = compose([*own, "logger=[wandb,tensorboard]", "logger.wandb.project=x", "run.name=c"])
    assert {"wandb", "tensorboard", "mlflow"} <= {*config["logger"]}
    assert config["logger"]["wandb"]["project"] == "x"
    assert config["run"] == {**called, "name": "c"}
    assert "callback" in problems_of([*own, "callback=ema"])


def test_a_run_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for hour, name in zip((10, 11, 12, 13), ("a b", "a b", "a b", "c"), strict=True):
        folder = tmp_path / "outputs" / "2026-01-05" / f"{hour}-00-00"
        make_run(folder, [f"run.name={name!r}"], checkpoint=hour != 12)
    newest = "outputs/2026-01-05/11-00-00"
    for key in ("checkpoint", "predict.checkpoint"):
        config = configure([f"{key}=a b"], command="predict")
        assert (config["predict"]["checkpoint"], config["run"]["name"]) == (newest, "a b")
    for key in ("resume", "init_from"):
        assert compose([f"trainer.{key}=a b"])["trainer"][key] == newest
    assert compose(["trainer.init_from=c", "outputs=others"])["trainer"]["init_from"] == "c"
    assert [*problems_of(["checkpoint=a"], "predict")] == ["predict.checkpoint"]
