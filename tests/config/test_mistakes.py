"""Each mistake of the table is reported by its key, and its printed remedy composes."""

from __future__ import annotations

import os
import pickle
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.run import parse_args

from penstock import build_loader, compose, fit
from penstock.pipeline.config.errors import ConfigError
from tests.config.mistakes import COMMAND_LINES, LIBRARIES, MISTAKES, Mistake, make_files
from tests.console import penstock

ENTRIES = [pytest.param(mistake, id=f"{heading}: {' '.join(mistake.overrides)[-60:]}")
           for heading, mistakes in MISTAKES.items() for mistake in mistakes]  # fmt: skip
# Mistakes of different components, none of which hides another.
POOL = [
    "sampler=wieghted", "optimiser=adam", "loader.workers=3", "loader.batch_size=0", "lr=0.1",
    "data_dir=${nope}", "seed=-1", "trainer.epochs=3", "scheduler.warmpu=3", "task.top_k=0",
    "model.width=20", "dataset.val_fraction=2", "hydra.job.chdir=true", "augment.image_sise=3",
    "loader.on_error=rais", "trainer.max_epochs=1,2", "~nothing",
]  # fmt: skip
OVERRIDE = re.compile(r"[A-Za-z_][\w./]*=|~[A-Za-z_][\w./]*$")
PLACEHOLDER = re.compile(r"<|\.\.\.|my_module")


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work beside the files of the table."""
    if not (folder := tmp_path_factory.getbasetemp() / "mistakes").exists():
        make_files(folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    return folder


def config_of(overrides: tuple[str, ...], folder: str = "presets") -> dict:
    """Compose, with the presets of the table if one of them is chosen."""
    presets = {f"experiment={file.stem}" for file in Path(folder, "experiment").iterdir()}
    return compose(overrides, config_dir=Path(folder) if presets & {*overrides} else None)


@cache
def problems_of(mistake: Mistake) -> tuple[tuple[str, str], ...]:
    """Return the key and the message of each problem."""
    with pytest.raises(ConfigError) as caught:
        config = config_of(mistake.overrides)
        if mistake.kind == LIBRARIES:
            build_loader(config).close()
            fit(config)
    return tuple((problem.key, problem.message) for problem in caught.value.problems)


@pytest.mark.parametrize("mistake", ENTRIES)
def test_a_mistake_is_one_line_for_each_of_its_keys(mistake: Mistake):
    problems = problems_of(mistake)
    assert {key for key, _ in problems} == mistake.keys
    assert all(message and "\n" not in message for _, message in problems)
    if mistake.typed:
        [(_, message)] = problems
        assert (" or ".join(map(" ".join, alternatives(message))) or "nothing") == mistake.typed


@settings(max_examples=15)
@given(st.lists(st.sampled_from(POOL), min_size=2, unique=True))
def test_several_mistakes_are_reported_at_once(overrides: list[str]):
    with pytest.raises(ValueError) as error:
        compose(overrides)
    expected = {text.lstrip("~").partition("=")[0] for text in overrides}
    assert {problem.key for problem in error.value.problems} == expected
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def alternatives(message: str) -> list[tuple[str, ...]]:
    """Return the command-line words of each alternative that a message says to type."""
    found = []
    for text in re.split(r"(?<![\w-])type (?:for example )?", message)[1:]:
        for part in re.split(r",? or ", re.split(r";(?= |$)", text)[0]):
            typed: list[str] = []
            # Quoted words, or words without blanks; a comma ends an alternative.
            for raw, comma in re.findall(r"""('[^']*'|"[^"]*"|[^\s"']\S*?)(,?)(?=\s|$)""", part):
                if raw in ("with", "for"):
                    continue
                [word, *_] = [*shlex.split(raw), ""]
                command = [*typed, raw][0] in ("torchrun", "--config-dir")
                if not (command or OVERRIDE.match(word)):
                    break
                typed.append(word)
                if comma:
                    break
            if typed:
                found.append(tuple(typed))
    return list(dict.fromkeys(found))


def without(key: str, overrides: tuple[str, ...], *, braces: bool) -> tuple[str, ...]:
    """Leave out overrides of `key` and of keys below it; with `braces`, a mapping that has it."""

    def leave_out(text: str) -> bool:
        typed = f"{text.lstrip('+~').partition('=')[0].replace('/', '.')}."
        holds = braces and "={" in text and place.startswith(typed)
        return holds or typed.startswith(place)

    place = f"{key.replace('/', '.')}."
    return tuple(text for text in overrides if not leave_out(text))


def failure_of(mistake: Mistake, remedies: dict[str, tuple[str, ...]], *, too: bool) -> str:
    """Return what happens when the remedies are typed, or an empty text if that composes."""
    typed = tuple(dict.fromkeys(word for words in remedies.values() for word in words))
    presets = "presets"
    if typed[:1] == ("torchrun",):
        return "" if parse_args(list(typed[1:])).nproc_per_node == "2" else "no ranks"
    if typed[:1] == ("--config-dir",):
        presets, typed = typed[1], typed[2:]
    variants = [mistake.overrides]
    for braces in () if too else (False, True):
        variants.append(mistake.overrides)
        for key in remedies:
            variants[-1] = without(key, variants[-1], braces=braces)
    said = ""
    for overrides in variants:
        try:
            config_of((*overrides, *typed, *mistake.beside), presets)
        except ValueError as error:
            said = str(error)
        else:
            return ""
    return f"{' '.join(typed)}: {said}"


@pytest.mark.parametrize("mistake", ENTRIES)
def test_a_printed_remedy_composes_when_it_is_typed(mistake: Mistake):
    said = dict(problems_of(mistake))
    offered = {
        key: [words for words in alternatives(message) if not PLACEHOLDER.search(" ".join(words))]
        for key, message in said.items()
    }
    # Leaving the override out is the remedy of a problem that offers nothing to type.
    first = {key: words[0] if words else () for key, words in offered.items()}
    if not any(offered.values()):
        pytest.skip("only placeholders, or nothing to type")
    failures = []
    for key, choices in offered.items():
        for words in choices:
            too = f"type {' '.join(words)} too" in said[key]
            failures += filter(None, [failure_of(mistake, {**first, key: words}, too=too)])
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("line", "key"), COMMAND_LINES)
def test_a_mistake_of_a_command_line_is_said_with_status_2(line, key, capfd, folder):
    before = sorted(os.listdir(folder))
    assert penstock(*shlex.split(line)) == 2
    told = capfd.readouterr().err
    assert key in told and "Traceback" not in told
    assert sorted(os.listdir(folder)) == before
