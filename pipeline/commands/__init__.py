"""Run the commands of ``penstock``; each takes the overrides that ``train.py`` takes.

A command is a module here, with a settings dataclass registered as ``settings/<command>`` and
``run(config) -> int``, which returns the exit status, and a line in `COMMANDS`.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pkgutil import resolve_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Describe a command: what it does and takes.

    Attributes:
        what: What it does, for ``--help``.
        points: The dotted path of what reads its overrides, in place of one config.
        takes_typed: Its ``run`` also gets the overrides as they were typed, as ``typed``.
        takes_files: Paths among its overrides are its data.
        words: Words that may follow its name, each with the override that it stands for.
        path: The setting that a word without a key gives.
    """

    what: str
    points: str = "penstock.pipeline.config.compose.configure"
    takes_typed: bool = False
    takes_files: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    path: str = ""


COMMANDS = {
    "bench": Command(
        what="which of loader and model is the limit; bench storages: which form to keep data in",
        points="penstock.pipeline.commands.bench.points.read_points",
        words={"storages": "bench.storages=true"},
    ),
    "doctor": Command(
        what="what this machine and this configuration can promise; equal=true proves it"
    ),
    "evaluate": Command(what="how good a trained model is on a test split or any other data"),
    "export": Command(
        what="a trained model as ONNX, safetensors or a state dict, compared with what it was",
        path="checkpoint",
    ),
    "pack": Command(
        what="copy a data set into another form, such as LMDB, or check such a copy",
        takes_typed=True,
    ),
    "predict": Command(
        what="what a trained model says of every sample, of images or a folder, as a table",
        takes_files=True,
    ),
    "preview": Command(what="a picture of what the model gets, beside the originals"),
    "runs": Command(what="the runs below outputs, with their names, tags and best figures"),
    "top": Command(
        what="how a run is doing, live: speed, waiting, workers, faults; penstock top RUN",
        path="path",
    ),
}
_TRAIN = {"train": Command(what="train, or sweep with -m; the same as a checkout's train.py")}


def main(argv: list[str]) -> int:
    """Run one command.

    Args:
        argv: The command's name and its overrides.

    Returns:
        The exit status: 0, 1 for a failure, 2 for a mistake in the arguments, 130 after Ctrl-C.
    """
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0 if argv else 2
    name, *overrides = argv
    if name not in COMMANDS:
        names = sorted(COMMANDS | _TRAIN)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(f"penstock: no command {name!r}{hint} (commands: {', '.join(names)})",
              file=sys.stderr)  # fmt: skip
        return 2
    from penstock.pipeline.config.app import run_command

    command = COMMANDS[name]
    run = import_module(f"penstock.pipeline.commands.{name}").run
    for word in [text for text in overrides if text[:1] != "-" and "=" not in text]:
        if word in command.words:
            # What is typed for the same key comes later, and counts.
            overrides = [command.words[word], *(text for text in overrides if text != word)]
        elif near := difflib.get_close_matches(word, command.words, n=1):
            print(f"penstock {name}: no {word!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
    if command.takes_typed:
        run = partial(run, typed=overrides)
    rewrite = partial(_paths_as_overrides, command)
    read = resolve_name(command.points)
    return run_command(name, overrides, run, read=read, rewrite=rewrite)


def _paths_as_overrides(command: Command, texts: list[str]) -> list[str]:
    """Turn words without a key into the setting or the data that they are for a command."""
    if command.takes_files:
        from penstock.pipeline.commands.named_files import naming_files

        return naming_files(texts)
    if command.path:
        return [text if "=" in text or text[:1] == "~" else f"{command.path}={text}"
                for text in texts]  # fmt: skip
    return texts


def _usage() -> str:
    lines = ["usage: penstock <command> [overrides]", ""]
    lines += [f"  {name:<8} {command.what}" for name, command in (_TRAIN | COMMANDS).items()]
    lines += ["", "`penstock <command> --help` shows a command's settings."]
    return "\n".join(lines)
