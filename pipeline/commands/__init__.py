"""The commands of ``python -m pipeline``; each takes the overrides that ``train.py`` takes.

A command is a module here: a settings dataclass registered as ``settings/<command>``, and
``run(config) -> int``, which returns the exit status. One that is to take ``key=a,b`` says
``SWEEPS = True``, and its ``run`` gets `pipeline.config.points.Points`.
"""

from __future__ import annotations

import difflib
import sys
from importlib import import_module

COMMANDS = {
    "bench": "how fast the loader is, what the model needs, and which of the two is the limit",
    "doctor": "what this machine and this configuration can promise; equal=true proves it",
    "pack": "copy a data set into another form, such as LMDB, or check such a copy",
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
    sweeps = getattr(command, "SWEEPS", False)
    return run_command(name, argv[1:], command.run, sweeps=sweeps)


def _usage() -> str:
    lines = ["usage: python -m pipeline <command> [overrides]", ""]
    lines += [f"  {name:<8} {what}" for name, what in COMMANDS.items()]
    lines += ["", "`python -m pipeline <command> --help` shows a command's settings."]
    return "\n".join(lines)
