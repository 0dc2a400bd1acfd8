"""The program as users start it: exit status, output, speed, and what it must not touch."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.programs import PENSTOCK

ROOT = Path(__file__).resolve().parents[2]
TRAIN = str(ROOT / "train.py")
HYDRA = "hydra._internal.config_loader_impl, hydra._internal.defaults_list"
# What reads a configuration is built on; whatever else is imported is not needed to answer.
# OmegaConf takes attr where it is.
_LIGHT = (
    "annotated_types antlr4 attr cython_runtime hydra hydra_plugins numpy omegaconf packaging "
    "penstock pydantic pydantic_core typing_extensions typing_inspection yaml"
).split()
_WATCHED = f"""
import runpy, sys
known = {{*sys.modules, *sys.stdlib_module_names, *{_LIGHT!r}}}
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    new = {{name.partition(".")[0] for name in sys.modules}} - known
    print("HEAVY", *sorted(name for name in new if name[0] != "_"), file=sys.stderr)
    sys.exit(end.code)
"""


slow = partial(pytest.param, marks=pytest.mark.slow)


def run(
    *arguments: str, cwd: Path, program: str = TRAIN, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WATCHED, program, *arguments], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, check=False, timeout=250,
        cwd=cwd,
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def signatures_are_known():
    """The first look at a library costs seconds, once for each version of it."""
    from penstock.pipeline.config.composition import compose

    compose()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("loader.num_worker=8", "sampler=wheighted", "optimizer.lr=x"), 2),
        slow(("--cfg", "job"), 0),  # as `pack` below
        (("-m", "sampler=random,weighted", "--cfg", "job"), 0),
        (("-sc", "query=bash"), 0),
        slow(("--hlep",), 2),
        slow(("sampler=weighted", "--help"), 0),
        slow(("dataset=lmdb", "augment=imagenet", "--help"), 0),
        slow(("--cfg=job", "augment=strong", "optimizer=sgd"), 0),
    ],
)
def test_it_answers_at_once_without_heavy_imports_or_files(tmp_path, arguments, status):
    done = run(*arguments, cwd=tmp_path, COMP_LINE="python train.py sampler=")
    check_answer(done, status, tmp_path)


def check_answer(done: subprocess.CompletedProcess[str], status: int, folder: Path) -> None:
    assert done.returncode == status, done.stderr
    assert "HEAVY\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ((), 2),
        (("bench", "--help"), 0),
        (("doctor", "sampler=wheighted"), 2),
        (("pack", "path=x", "--cfg", "job"), 0),
        slow(("--help",), 0),
        slow(("predict",), 2),
        slow(("preview", "--cfg", "job"), 0),
    ],
)
def test_commands_answer_without_heavy_imports_or_files(tmp_path, arguments, status):
    check_answer(run(*arguments, cwd=tmp_path, program=PENSTOCK), status, tmp_path)


@pytest.mark.slow
def test_an_answer_takes_little_more_than_importing_what_it_is_built_on(tmp_path):
    """In processor time, which other programs of the machine hardly change; the best of some."""
    answers = {
        "help": [str(ROOT / "train.py"), "--help"],
        "config": [str(ROOT / "train.py"), "--cfg", "job"],
        "completion": [str(ROOT / "train.py"), "-sc", "query=bash"],
        "mistakes": [str(ROOT / "train.py"), "loader.num_worker=8", "sampler=wheighted"],
    }
    floor = ["-c", f"import numpy, omegaconf, pydantic, yaml, {HYDRA}"]
    best = dict.fromkeys(answers, float("inf")) | {"floor": float("inf")}
    for _ in range(4):
        for name, command in {"floor": floor, **answers}.items():
            best[name] = min(best[name], processor_seconds(command, cwd=tmp_path))
        slow = {name: best[name] / best["floor"] for name in answers}
        slow = {name: ratio for name, ratio in slow.items() if ratio > 4}
        if not slow:
            return
    raise AssertionError(f"times what the imports take: {slow}")


def processor_seconds(command: list[str], *, cwd: Path) -> float:
    """What a command of the interpreter spends, with its modules compiled as they usually are."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COMP_LINE": "python train.py sampler="}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], capture_output=True, cwd=cwd, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_mistakes_are_printed_once_and_not_once_per_rank(monkeypatch, capsys):
    from penstock.pipeline.config.command_line import main

    for rank, times in (("0", 1), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        assert main("no.job", ["loader.num_worker=8"]) == 2
        assert capsys.readouterr().err.count("loader.num_worker: 8 given") == times


def test_the_printed_config_is_the_config(capsys):
    from penstock.pipeline.config.command_line import main
    from penstock.pipeline.config.composition import compose

    assert main("no.job", ["--cfg", "job", "seed=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == compose(["seed=3"])
    assert main("no.job", ["--cfg", "job", "--package", "loader.batch_size"]) == 0
    assert capsys.readouterr().out == "64\n"
    assert main("no.job", ["--cfg", "job", "-p", "loadr"]) == 2


@pytest.mark.parametrize(
    ("choice", "arguments"),
    [
        (
            "dataset=lmdb",
            "dataset.storage.key_format= dataset.decode.max_pixels= dataset.val_fraction=",
        ),
        ("dataset=stream", "dataset.source.path=demo dataset.shuffle_window="),
        ("dataset=mix", "dataset.sources={} dataset.length="),
        ("augment=imagenet", "augment.train.crop.scale=[0.08,1.0] augment.eval.resize.max_size="),
        ("loader=threads", "loader.engine=threads loader.prefetch_factor=2"),
        ("optimizer=sgd", "optimizer.lr=0.1 optimizer.nesterov=true"),
        ("trainer=default", "trainer.max_epochs=10"),
        ("experiment=bccd", "dataset.annotations.path= loader.batch_size=8 trainer.monitor=map_50"),
        ("sampler=weighted", "sampler.replacement="),
        ("batch_transform=mixup", "augment.device.mixup.alpha="),
    ],
)
def test_help_after_a_choice_shows_what_its_components_take(choice, arguments, capsys):
    from penstock.pipeline.config.command_line import main

    assert main("no.job", [choice, "--help"]) == 0
    out = capsys.readouterr().out
    assert "usage:" not in out
    for argument in arguments.split():
        assert f"\n  {argument}" in out


def test_help_names_every_group_and_option_in_a_line(tmp_path):
    from penstock.core import registry
    from penstock.pipeline.config.composition import composer_for

    composer = composer_for([])
    ours = {
        (registry.GROUPS[component.group].option_group, component.name)
        for component in registry.components()
        if component.target.__module__.startswith("penstock.")
    }  # other tests of this process may have registered more
    done = run("--help", cwd=tmp_path)
    check_answer(done, 0, tmp_path)
    out = done.stdout
    assert "\n  writer" not in out, "which is for a command alone"
    for group in set(composer.groups()) - {"writer"}:
        for option in composer.options(group):
            if (group, option) not in ours and not (ROOT / f"conf/{group}/{option}.yaml").exists():
                continue
            assert f"\n  {group}" in out
            summary = composer.summary(group, option)
            assert summary, f"{group}={option} has no summary"
            told = summary.replace("``", "`")
            assert f" {option} {told}" in " ".join(out.split())
    assert sum(line.startswith(f"  python {ROOT / 'train.py'}") for line in out.splitlines()) == 5


def test_an_import_that_fails_stops_with_its_own_traceback(tmp_path):
    (tmp_path / "broken_parts.py").write_text("def f():\n    return 1 / 0\nf()\n")
    done = run("imports=[broken_parts.py]", cwd=tmp_path)
    assert done.returncode not in (0, 2)
    assert "broken_parts.py" in done.stderr and "ZeroDivisionError" in done.stderr


def test_another_package_named_datasets_stays_what_it_is(tmp_path):
    """Hugging Face's `datasets` lies beside ours, and a component of the user's imports it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "datasets.py").write_text("load_dataset = 'theirs'\n")
    (tmp_path / "parts.py").write_text("import datasets; print('it is', datasets.load_dataset)\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), "imports=[parts.py]", "--cfg", "job"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "it is theirs" in done.stdout


def test_the_checkout_trains_itself_and_no_other_penstock(tmp_path):
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text("raise SystemExit('another penstock')")
    done = subprocess.run(
        [sys.executable, TRAIN, "--cfg", "job"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "_target_" in done.stdout


def test_the_job_gets_the_plain_config(tmp_path, monkeypatch):
    from penstock.pipeline.config.command_line import main

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plain_job.py").write_text(
        "def train(config):\n    seen.append(config)\nseen = []\n"
    )
    assert main("plain_job.train", ["seed=4"]) == 0
    assert sys.modules["plain_job"].seen[0]["seed"] == 4
    assert type(sys.modules["plain_job"].seen[0]["loader"]) is dict


def test_a_command_has_settings_of_its_own(capsys, monkeypatch):
    from dataclasses import dataclass

    from penstock.core import registry
    from penstock.pipeline.config.command_line import configure, run_command

    monkeypatch.setattr(registry, "_components", dict(registry._components))

    @registry.register("settings", "fakecommand")
    @dataclass(frozen=True)
    class Settings:
        """Of a command."""

        split: str = "train"

    assert (
        configure(["fakecommand.split=val"], command="fakecommand")["fakecommand"]["split"] == "val"
    )
    assert configure(["split=val"], command="fakecommand")["fakecommand"]["split"] == "val"
    assert run_command("fakecommand", ["split=val"], lambda config: 3) == 3
    assert run_command("fakecommand", ["splitt=val"], lambda config: 3) == 2
    assert "type fakecommand.split=val" in capsys.readouterr().err


def test_a_setting_of_a_command_chooses_an_option_and_knows_its_arguments(
    tmp_path, monkeypatch, capsys
):
    from penstock.core import registry
    from penstock.pipeline.commands import main
    from penstock.pipeline.config import command_line

    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.chdir(tmp_path)

    def pack(*words):
        status = main(["pack", f"path={tmp_path / 'x'}", *words])
        return status, *capsys.readouterr()

    status, _, told = pack("pack.to=lmbd")
    assert (status, told.count("\n")) == (2, 2)
    assert "pack.to: no option 'lmbd'" in told and "type pack.to=lmdb" in told
    assert "writer/lmdb accepts" in pack("to=lmdb", "writer.shard=3")[2]
    shown = yaml.safe_load(pack("--cfg", "job")[1])
    assert (shown["pack"]["to"], shown["writer"]) == ("lmdb", {"_target_": "writer/lmdb"})
    (tmp_path / "mine.py").write_text(
        "from penstock.core.registry import register\n"
        "@register('writer', 'mine')\n"
        "class Mine:\n"
        "    def __init__(self, *, part_records: int = 7) -> None: ...\n"
    )
    mine = pack("imports=[mine.py]", "to=mine", "writer.part_records=9", "--cfg", "job")
    shown = yaml.safe_load(mine[1])
    assert (shown["pack"]["to"], shown["writer"]["part_records"]) == ("mine", 9)
    assert command_line.main("no.job", ["writer=lmdb"]) == 2
    assert "writer: " in capsys.readouterr().err, "train.py has no use for it"


def test_under_torchrun_a_mistake_is_the_cause_that_its_summary_ends_with(
    tmp_path, monkeypatch, capsys
):
    from penstock.pipeline.config import command_line, errors

    waited = []
    monkeypatch.setattr(errors.time, "sleep", waited.append)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    for rank in ("0", "1"):
        file = tmp_path / f"{rank}.json"
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
        assert command_line.main("a.job", ["sampler=wheighted"]) == 2
        message = json.loads(file.read_text())["message"]
        assert "type sampler=weighted" in message["extraInfo"]["py_callstack"]
        assert int(message["extraInfo"]["timestamp"]) > 0
    assert len(waited) == 1  # torchrun ends rank 1 while it waits, once rank 0 has told
    assert capsys.readouterr().err == ""
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"):
        monkeypatch.delenv(name)
    assert command_line.main("a.job", ["sampler=wheighted"]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "0")
    assert command_line.main("a.job", ["sampler=wheighted"]) == 2
    assert capsys.readouterr().err.count("type sampler=weighted") == 1
