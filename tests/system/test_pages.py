"""What README and docs/ say to type is read, and what docs/own.md makes trains."""

from __future__ import annotations

import copy
import re
import shlex
import shutil
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from hydra.core.config_store import ConfigStore

from penstock import compose
from penstock.core import registry
from penstock.pipeline import commands
from penstock.pipeline.config.app import main
from penstock.pipeline.config.components import load_imports
from penstock.pipeline.config.compose import prepare
from penstock.pipeline.config.errors import ConfigError
from penstock.pipeline.config.sweep import check_sweep

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md", "examples/project/README.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
]  # fmt: skip
FILE = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ |srun (?:--\S+ )+)?torchrun (?:--\S+ )+(?:train\.py|penstock train)"
    r"|python (?P<train>train)\.py"
    r"|penstock (?P<command>[a-z]+)(?= |$)"
)
# What else a page may say to type; CI runs some.
OTHERS = re.compile(r"pip install |python -m pytest|mkdocs |eval |cat ")
# All that may be wrong: libraries that this environment does not have.
MISSING = re.compile(
    r"\d+ errors? .*\n(  .*: the package \S+ is missing( \(the extra \w+\))?; run: .*\n)+"
)
SMALL = [
    "debug=one_batch", "trainer.progress=off", "trainer.num_threads=1", "augment=none",
]  # fmt: skip


class Typed(NamedTuple):
    """A command of a page: ``train`` or one of `commands.COMMANDS`, and what follows it."""

    program: str
    arguments: list[str]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def fenced(page: str) -> list[str]:
    """Lines of a page's code blocks in no language: what is typed, and what is drawn."""
    blocks = [text for language, text in BLOCK.findall(FILE.sub("", read(page))) if not language]
    return [
        line
        for block in blocks
        if not block.startswith("$ ")  # with what it prints: see below
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
    ]


def inline(page: str) -> list[str]:
    """Code within a page's text that has a program and arguments."""
    found = re.findall(r"`([^`]+)`", BLOCK.sub("", read(page)))
    lines = [" ".join(text.split()) for text in found]
    return [line for line in lines if (match := PROGRAM.match(line)) and match[0] != line]


def cells(page: str) -> list[str]:
    """Commands of the tables whose last column, "you type", stands behind `penstock train`."""
    found = []
    for table in re.findall(r"(?:^\|.*\|\n)+", read(page), re.MULTILINE):
        heading, _, *rows = table.splitlines()
        if heading.endswith("| you type |"):
            spans = [re.findall(r"`([^`]+)`", row.split(" | ")[-1]) for row in rows]
            assert all(len(each) == 1 for each in spans), table
            found += [text if PROGRAM.match(text) else f"penstock train {text}" for [text] in spans]
    return found


def typed(line: str) -> list[Typed]:
    """Take a line apart into commands of ours; nothing of a line that is no command.

    Raises:
        AssertionError: A program is typed that this test does not know.
    """
    found = []
    for part in re.split(r" && | \| ", line.partition("  #")[0]):
        if match := PROGRAM.match(part):
            program = match["command"] or "train"
            found.append(Typed(program, shlex.split(part[match.end() :])))
        elif part.split(" ")[0] in ("python", "penstock", "torchrun", "srun", "bash", "git", "pip"):
            assert OTHERS.match(part), f"{line}: what runs this?"
    return found


def there(argument: str) -> str:
    """Make what an argument says that there is, in this folder, where that is no URL."""
    key, _, value = argument.partition("=")
    name = key.rpartition(".")[2]
    if name == "checkpoint":
        value = value.removeprefix("s3://")
        Path(value).mkdir(parents=True, exist_ok=True)
        Path(value, "config.yaml").write_text(yaml.safe_dump(compose()))
    elif name in ("path", "check") and re.fullmatch(r"/?\w[\w/.-]*", value):
        value = value.lstrip("/")
        Path(value).mkdir(parents=True, exist_ok=True)
    elif argument.endswith((".jpg", ".png")):
        Path(argument.replace("**/", "").replace("*", "0")).touch()  # one that a pattern finds
        return argument
    else:
        return argument
    return f"{key}={value}"


def show(command: Typed) -> int:
    """Compose a command's config as it would run, and print it."""
    program, arguments = command.program, list(map(there, command.arguments))
    if program == "train" and "-m" in arguments:
        return checks_sweep([text for text in arguments if text != "-m"])
    shows = [] if {"--help", "--cfg"} & {*arguments} else ["--cfg", "job"]
    if program == "train":
        return main([*arguments, *shows])
    return commands.main([program, *arguments, *shows])


def checks_sweep(arguments: list[str]) -> int:
    """Check a sweep as it would be before its first job."""
    of_hydra = [text for text in arguments if text.startswith(("hydra/", "hydra."))]
    texts = [text for text in arguments if text not in of_hydra]
    try:
        check_sweep(texts, searches="hydra/sweeper=optuna" in of_hydra)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes a folder of a user's own with the files of a page in it, and goes there."""
    for name in commands.COMMANDS:  # what is ours is registered and in the store
        import_module(f"penstock.pipeline.commands.{name}")
    prepare()
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", copy.deepcopy(store.repo))
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    examples = ROOT / "examples"  # which other tests may have imported
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.startswith(str(examples))])
    for file in examples.glob("*.py"):
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    before = set(sys.modules)

    def make(page: str) -> Path:
        made = tmp_path / "own"
        if page == "examples/project/README.md":
            shutil.copytree((ROOT / page).parent, made)
        files = dict(FILE.findall(read(page)))
        if page == "docs/own.md":
            blocks = dict(FILE.findall(read("docs/architecture.md")))
            files["my_task.py"] = blocks["pipeline/tasks/brightness.py"]
            plugins = (ROOT / "examples" / "plugins").glob("*.py")
            files |= {plugin.name: plugin.read_text() for plugin in plugins}
        if page == "docs/architecture.md":  # which says it in its text
            files["conf/dataset/noise.yaml"] = "_target_: dataset/noise\n"
        for name, text in files.items():
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text(text)
        (made / "photos/cat").mkdir(parents=True)
        (made / "examples").symlink_to(ROOT / "examples")
        if page == "docs/architecture.md":  # whose components stand in the tree
            load_imports([str(made / n) for n in files if re.match(r"(datasets|pipeline)/", n)])
        monkeypatch.chdir(made)
        return made

    yield make
    for name in {*sys.modules} - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith((str(tmp_path), str(ROOT / "examples"))):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_read_without_a_mistake(page, folder, capsys):
    folder(page)
    for line in dict.fromkeys([*fenced(page), *inline(page), *cells(page)]):
        for command in typed(line):
            status = show(command)
            said = capsys.readouterr()
            assert status == 0 or MISSING.fullmatch(said.err), f"{line}: {said.err}"


def test_commands_are_found_where_they_stand():
    assert len(fenced("README.md")) > 7 and len(inline("docs/training.md")) > 10
    assert len(cells("docs/moving.md")) > 50 and cells("docs/recipes.md") == []
    [bench] = [command for line in fenced("docs/storages.md") for command in typed(line)][1:2]
    assert bench.program == "bench" and bench.arguments[-1] == "bench.records=20000"
    assert typed("cat a | torchrun --nnodes=2 --no-python penstock train seed=1  # two")
    assert typed("srun --nodes=2 torchrun --nnodes=2 train.py a=1") == [Typed("train", ["a=1"])]
    assert typed("NAME=1 torchrun --nnodes=2 train.py a=1") == [Typed("train", ["a=1"])]
    for line in ("python evil.py", "srun --nodes=2 evil"):
        with pytest.raises(AssertionError, match="what runs this"):
            typed(line)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_shows_of_a_mistake_is_what_is_said(page, folder, capsys):
    folder(page)
    for _, block in BLOCK.findall(read(page)):
        if block.startswith("$ "):
            line, _, shown = block.removeprefix("$ ").partition("\n")
            [command] = typed(line)
            assert show(command) == 2
            # The list of what there is grows.
            said, shown = (re.sub(r" are [^;]*;", ";", t) for t in (capsys.readouterr().err, shown))
            assert said == shown


def test_every_extra_that_a_page_names_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(map(read, [*PAGES, "CONTRIBUTING.md", "benchmarks/README.md"]))
    named = set(re.findall(r"(?:'\.|penstock)\[(\w+)\]", text))
    assert named and named <= project["optional-dependencies"].keys()


def test_the_readme_is_short():
    assert len(read("README.md").splitlines()) < 150


def test_an_experiment_sets_what_it_says_and_what_is_typed_wins(folder):
    folder("docs/own.md")
    config = compose(["experiment=pets", "augment=pets", "trainer.max_epochs=2"])
    assert config["optimizer"]["_target_"] == "torch.optim.SGD"
    assert config["trainer"]["max_epochs"] == 2 and config["loader"]["batch_size"] == 32
    assert {"crop", "upside_down"} <= set(config["augment"]["train"])


@pytest.mark.parametrize(
    "arguments",
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
def test_the_model_the_task_and_the_callback_of_the_page_train(arguments, folder, data_dir, capsys):
    own = folder("docs/own.md")
    assert main([*arguments, *SMALL, f"data_dir={data_dir}"]) == 0
    shown = "mae" if "brightness" in arguments[1] else "accuracy"
    [run] = (own / "outputs").glob("*/*/metrics.csv")
    assert f"val/{shown}" in run.read_text()
    said = capsys.readouterr().out
    assert ("step 1: gradients of norm" in said) == ("callback" in arguments[0])
