"""What README, docs/training.md and docs/own.md say to type is read, and what they make trains."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from penstock.core import registry
from penstock.pipeline.commands import preview
from penstock.pipeline.config.command_line import main, run_command
from penstock.pipeline.config.discovery import load_builtin

DOCS = Path(__file__).resolve().parents[2] / "docs"
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = r"(?:python train\.py|torchrun \S+ train\.py|penstock (?:train|preview))"
COMMAND = re.compile(rf"{PROGRAM} ?(.*)")
SMALL = [
    "debug=one_batch", "trainer.progress=off", "trainer.num_threads=1", "augment=none",
]  # fmt: skip


def commands(page: str) -> list[tuple[str, list[str]]]:
    """Commands that a page says to type, as a program's name and arguments."""
    text = FILE.sub("", (DOCS / page).read_text())
    blocks = re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    typed = [line for block in blocks for line in block.splitlines()]
    typed += re.findall(r"`([^`\n]+)`", text)
    found = [match for line in typed if (match := COMMAND.fullmatch(line.partition("  #")[0]))]
    return [(match[0].split()[1], shlex.split(match[1])) for match in found]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder of a user's own with the files of the page in it."""
    load_builtin()
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    files = dict(FILE.findall((DOCS / "own.md").read_text()))
    files |= dict(FILE.findall((DOCS.parent / "README.md").read_text()))
    architecture = dict(FILE.findall((DOCS / "architecture.md").read_text()))
    files["my_task.py"] = architecture["pipeline/tasks/brightness.py"]
    plugins = list((DOCS.parent / "examples" / "plugins").glob("*.py"))
    files |= {file.name: file.read_text() for file in plugins}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("photos", "pets", "shards"):  # a user's data
        (tmp_path / name).mkdir()
    yield tmp_path
    for name in {Path(name).stem for name in files} & ({*sys.modules} - before):
        del sys.modules[name]


@pytest.mark.parametrize("page", ["training.md", "own.md", "../README.md"])
def test_every_command_is_read_without_a_mistake(page, project, capsys):
    typed = commands(page)
    assert len(typed) > 7
    for program, arguments in typed:
        if "hydra/sweeper=optuna" in arguments and find_spec("optuna") is None:
            continue
        shows = [] if "--help" in arguments or "--cfg" in arguments else ["--cfg", "job"]
        if program == "preview":
            status = run_command("preview", [*arguments, *shows], preview.run)
        else:
            status = main("no.job", [*arguments, *shows])
        said = capsys.readouterr()
        assert status == 0, f"{arguments}: {said.err}"


def test_the_readme_is_short():
    assert len((DOCS.parent / "README.md").read_text().splitlines()) < 150


def test_an_experiment_sets_what_it_says_and_what_is_typed_wins(project):
    from penstock import compose

    config = compose(["experiment=pets", "augment=pets", "trainer.max_epochs=2"])
    assert config["optimizer"]["_target_"] == "torch.optim.SGD"
    assert config["trainer"]["max_epochs"] == 2 and config["loader"]["batch_size"] == 32
    assert {"crop", "upside_down"} <= set(config["augment"]["train"])


@pytest.mark.parametrize(
    "typed",
    [
        ["imports=[my_model.py]", "model=tiny", "model.width=32"],
        ["imports=[my_task.py]", "task=brightness", "task.scale=0.5"],
        [
            "imports=[my_callback.py]",
            "callback=gradient_norm",
            "callback.gradient_norm.every=1",
        ],
    ],
)
def test_the_model_the_task_and_the_callback_of_the_page_train(typed, project, data_dir, capsys):
    job = "penstock.pipeline.training.job.train"
    assert main(job, [*typed, *SMALL, f"data_dir={data_dir}"]) == 0
    shown = "mae" if "brightness" in typed[1] else "accuracy"
    [run] = (project / "outputs").glob("*/*/metrics.csv")
    assert f"val/{shown}" in run.read_text()
    said = capsys.readouterr().out
    assert ("step 1: gradients of norm" in said) == ("callback" in typed[0])
