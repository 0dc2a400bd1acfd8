"""The commands of ``python -m pipeline``; each takes the overrides that ``train.py`` takes.

A command is a module here: a settings dataclass registered as ``settings/<command>``, and
``run(config) -> int``, which returns the exit status. One that is to take ``key=a,b`` says
``SWEEPS = True``, and its ``run`` gets `pipeline.config.points.Points`. With ``TYPED = True`` it
also gets the overrides as they were typed. ``WORDS`` are words that may follow its name, each with
the override that it stands for.
"""

from __future__ import annotations

import difflib
import sys
from functools import partial
from importlib import import_module

COMMANDS = {
    "bench": "which of loader and model is the limit; bench storages: which form to keep data in",
    "doctor": "what this machine and this configuration can promise; equal=true proves it",
    "pack": "copy a data set into another form, such as LMDB, or check such a copy",
    "predict": "what a trained model says of every sample, as a table",
    "preview": "a picture of what the model gets, beside the originals",
}


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
    name = argv[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        print(
            f"pipeline: no command {name!r}{hint} (commands: {', '.join(COMMANDS)})",
            file=sys.stderr,
        )
        return 2
    from pipeline.config.command_line import run_command

    command = import_module(f"pipeline.commands.{name}")
    sweeps, words = getattr(command, "SWEEPS", False), getattr(command, "WORDS", {})
    typed = argv[1:]
    for word in [text for text in typed if text[:1] != "-" and "=" not in text]:
        if word in words:
            typed = _without_word(typed, word, words[word])
        elif near := difflib.get_close_matches(word, words, n=1):
            print(f"pipeline {name}: no {word!r}; did you mean {near[0]}?", file=sys.stderr)
            return 2
    run = partial(command.run, typed=typed) if getattr(command, "TYPED", False) else command.run
    return run_command(name, typed, run, sweeps=sweeps)


def _without_word(typed: list[str], word: str, override: str) -> list[str]:
    """What was typed, with the override in the word's place, unless its key was typed too."""
    key = override.partition("=")[0]
    keys = (f"{key}=", f"{key.rpartition('.')[2]}=")
    instead = [] if any(text.startswith(keys) for text in typed) else [override]
    at = typed.index(word)
    return [*typed[:at], *instead, *typed[at + 1 :]]


def _usage() -> str:
    lines = ["usage: python -m pipeline <command> [overrides]", ""]
    lines += [f"  {name:<8} {what}" for name, what in COMMANDS.items()]
    lines += ["", "`python -m pipeline <command> --help` shows a command's settings."]
    return "\n".join(lines)
