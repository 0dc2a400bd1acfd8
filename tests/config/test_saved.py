"""Resuming by folder: the run's own config, changed by values and never composed again."""

from __future__ import annotations

import re

import pytest
import yaml

import penstock.pipeline.commands.evaluate
import penstock.pipeline.commands.predict  # noqa: F401 - the same
from penstock.pipeline.config.command_line import configure
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.errors import ConfigError


@pytest.fixture
def run_dir(tmp_path):
    config = compose(["sampler=weighted", "augment=light", "augment.image_size=48"])
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (tmp_path / "checkpoints" / "last.pt").write_bytes(b"")
    return tmp_path


def test_the_saved_config_is_what_runs(run_dir):
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    for path in (run_dir, run_dir / "checkpoints" / "last.pt"):
        config = compose([f"trainer.resume={path}"])
        assert config["trainer"].pop("resume") == str(path)
        expected = {
            **saved,
            "trainer": {k: v for k, v in saved["trainer"].items() if k != "resume"},
        }
        assert config == expected


def test_values_are_changed_and_checked(run_dir):
    resume = f"trainer.resume={run_dir}"
    config = compose([resume, "trainer.max_epochs=7", "loader.num_workers=0"])
    assert (config["trainer"]["max_epochs"], config["loader"]["num_workers"]) == (7, 0)
    assert config["sampler"]["_target_"] == "sampler/weighted"
    with pytest.raises(ConfigError, match=r"loader\.num_worker: 3 given") as caught:
        compose([resume, "loader.num_worker=3", "sampler=random", "augment.image_size=32"])
    assert [p.key for p in caught.value.problems] == [
        "sampler", "augment.image_size", "loader.num_worker",
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["trainer.resume", "predict.checkpoint"])
def test_a_strangers_run_executes_nothing_that_was_not_named(run_dir, tmp_path, key):
    done = tmp_path / "it was run"
    module = tmp_path / f"strange_parts_{key.partition('.')[0]}.py"
    module.write_text(f"open({str(done)!r}, 'w').close()\n")
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    (run_dir / "config.yaml").write_text(yaml.safe_dump({**saved, "imports": [str(module)]}))
    given = [f"{key}={run_dir}", f"predict.checkpoint={run_dir}"]
    with pytest.raises(
        ConfigError, match=r"imports: the saved config names .*; type imports="
    ) as no:
        configure(given, command="predict")
    assert not done.exists()
    [typed] = re.findall(r"imports=\S+", str(no.value))
    assert configure([*given, typed], command="predict")["imports"] == [str(module)]
    assert done.exists()


def test_a_key_that_the_run_does_not_have_is_refused(run_dir):
    with pytest.raises(ConfigError, match="typo: 3 given, unknown key"):
        compose([f"trainer.resume={run_dir}", "typo=3"])


@pytest.mark.parametrize("key", ["trainer.resume", "predict.checkpoint"])
def test_a_command_has_its_settings_beside_a_saved_config(run_dir, key):
    path = run_dir / "checkpoints" / "last.pt"
    config = configure([f"predict.checkpoint={path}", f"{key}={run_dir}"], command="predict")
    assert config["predict"]["_target_"] == "settings/predict"
    assert config["predict"]["output"] == "predictions.parquet"
    assert config["sampler"]["_target_"] == "sampler/weighted"


def test_a_checkpoint_that_lies_in_no_run_is_of_what_is_typed(tmp_path):
    (tmp_path / "alone.pt").write_bytes(b"")
    config = configure([f"predict.checkpoint={tmp_path / 'alone.pt'}"], command="predict")
    assert config["sampler"]["_target_"] == "sampler/random"


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_missing_run_is_told_by_the_newest_that_there_is(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"string; type {command}.checkpoint=\.\.\."):
        configure([], command=command)
    for name in ("2026-01-31/23-59-59", "2026-02-01/08-00-00", "2026-02-01/09-00-00"):
        folder = tmp_path / "outputs" / name
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(compose([])))
        if not name.endswith("09-00-00"):  # which has not come to one
            (folder / "checkpoints/last.pt").write_bytes(b"")
    for given in ([], ["checkpoint=outputs/nope"]):
        with pytest.raises(ConfigError, match="; type checkpoint=outputs/") as no:
            configure(given, command=command)
        [typed] = re.findall(r"type (checkpoint=\S+)$", str(no.value))
        assert typed == "checkpoint=outputs/2026-02-01/08-00-00"
    assert configure([typed], command=command)[command]["checkpoint"]
    with pytest.raises(ConfigError, match=r"; type trainer.resume=outputs/2026-02-01/08-00-00$"):
        compose(["trainer.resume=outputs/nope"])
    with pytest.raises(ConfigError, match=r"or a checkpoint$"):
        configure(["checkpoint=nope", "outputs=elsewhere"], command=command)


def test_auto_is_left_to_the_run():
    assert compose(["trainer.resume=auto"])["trainer"]["resume"] == "auto"
    assert compose(["trainer.resume=null"])["trainer"]["resume"] is None


def test_the_runs_own_command_line_goes_on_with_it(run_dir):
    own = ["sampler=weighted", "augment=light", "augment.image_size=48"]
    resume = f"trainer.resume={run_dir}"
    expected = compose([resume])
    assert compose([*own, resume]) == expected
    changed = compose([*own, resume, "trainer.max_epochs=20", "loader=threads"])
    assert changed["trainer"] == {**expected["trainer"], "max_epochs": 20}
    assert changed["loader"]["engine"] == "threads" != expected["loader"]["engine"]
    assert {**changed, "trainer": 0, "loader": 0} == {**expected, "trainer": 0, "loader": 0}


def test_what_may_differ_and_is_not_typed_stays_the_runs(run_dir):
    file = run_dir / "config.yaml"
    saved = yaml.safe_load(file.read_text())
    saved["trainer"]["max_epochs"], saved["loader"]["num_workers"] = 3, 2
    file.write_text(yaml.safe_dump(saved))
    config = compose(["sampler=weighted", "augment.image_size=48", f"trainer.resume={run_dir}"])
    assert (config["trainer"]["max_epochs"], config["loader"]["num_workers"]) == (3, 2)


def test_options_of_another_run_are_refused_with_what_differs(run_dir):
    resume, typed = f"trainer.resume={run_dir}", ["sampler=random", "augment.image_size=48"]
    with pytest.raises(ConfigError) as caught:
        compose([*typed, resume])
    [problem] = caught.value.problems
    assert problem.key == "sampler"
    assert "is 'sampler/random', and the run has 'sampler/weighted'" in problem.message
    assert "leave sampler=random away" in problem.message
    assert compose([resume])["sampler"]["_target_"] == "sampler/weighted"  # what it says works
    with pytest.raises(ConfigError, match=r"trainer\.resume: with what is typed aug") as caught:
        compose(["sampler=weighted", resume])
    assert "leave sampler=weighted away" in str(caught.value)


def test_a_run_goes_on_under_what_only_watches_it_and_not_with_another_average(run_dir):
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    stopping = {"_target_": "callback/early_stopping", "patience": 3, "min_delta": 0.5}
    text = yaml.safe_dump({**saved, "callback": {"early_stopping": stopping}})
    (run_dir / "config.yaml").write_text(text)
    resume = f"trainer.resume={run_dir}"
    own = ["sampler=weighted", "augment=light", "augment.image_size=48"]
    for typed in ([], own):
        config = compose([resume, *typed, "callback=profile", "callback.profile.active=5"])
        assert config["callback"]["early_stopping"] == stopping
        assert config["callback"]["profile"]["active"] == 5
        patient = [resume, *typed, "callback=early_stopping", "callback.early_stopping.patience=9"]
        assert compose(patient)["callback"]["early_stopping"] == {**stopping, "patience": 9}
        with pytest.raises(ConfigError, match=r"callback: .*leave .*away"):
            compose([resume, *typed, "callback=ema"])
    (run_dir / "config.yaml").write_text(yaml.safe_dump(saved))  # of before there were any
    assert [*compose([resume, "callback=profile"])["callback"]] == ["profile"]


def test_a_run_goes_on_under_other_loggers_and_names(run_dir):
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    mlflow = {"_target_": "logger/mlflow", "experiment": "owls", "tracking_uri": None}
    called = {"_target_": "settings/run", "name": "a", "tags": ["b"]}
    saved |= {"logger": {"mlflow": mlflow}, "run": called}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(saved))
    resume = f"trainer.resume={run_dir}"
    own = ["sampler=weighted", "augment=light", "augment.image_size=48"]
    for typed in ([], own):
        config = compose([resume, *typed])
        assert config["logger"]["mlflow"] == mlflow and config["run"] == called
        config = compose([resume, *typed, "logger=prometheus", "logger.prometheus.port=9500"])
        assert config["logger"]["prometheus"]["port"] == 9500
        assert config["logger"]["mlflow"] == mlflow
        config = compose([resume, *typed, "logger=[prometheus,tensorboard]", "run.name=c"])
        assert {"prometheus", "tensorboard", "mlflow"} <= {*config["logger"]}
        assert config["run"] == {**called, "name": "c"}


def test_a_run_is_asked_for_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times = ("10-00-00", "11-00-00", "12-00-00", "13-00-00")
    for time, name in zip(times, ("a b", "a b", "a b", "c"), strict=True):
        run = tmp_path / "outputs" / "2026-01-05" / time
        (run / "checkpoints").mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(compose([f"run.name={name!r}"])))
        if time != "12-00-00":  # which has not come as far as a checkpoint
            (run / "checkpoints" / "last.pt").touch()
    newest = "outputs/2026-01-05/11-00-00"
    for key in ("checkpoint", "predict.checkpoint"):
        config = configure([f"{key}=a b"], command="predict")
        assert config["predict"]["checkpoint"] == newest
        assert config["run"]["name"] == "a b"
    for key in ("resume", "init_from"):
        assert compose([f"trainer.{key}=a b"])["trainer"][key] == newest
    assert compose(["trainer.init_from=c", "outputs=others"])["trainer"]["init_from"] == "c"
    with pytest.raises(ConfigError, match=r"its run\.name, or a checkpoint; .*penstock runs"):
        configure(["checkpoint=a"], command="predict")
    (tmp_path / "c").mkdir()  # a folder that is no run's, such as data
    config = configure(["checkpoint=c"], command="predict")
    assert config["predict"]["checkpoint"] == "outputs/2026-01-05/13-00-00"
