"""The programs ``penstock COMMAND`` and ``python train.py``."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

# Names under which the dependencies of pyproject.toml are imported.
_NEEDED = frozenset(
    "PIL albumentations annotated_types cv2 hydra lmdb numpy omegaconf pyarrow pydantic rich "
    "simplejpeg torch torchmetrics yaml".split()
)


def _output_fails() -> bool:
    """Tell whether what was printed cannot be written, on a full disk for example."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def prepare_output() -> None:
    """Give a program whose output was closed (``>&-``) one that goes nowhere, and escape letters.

    Python has None for what was closed, and stops at a letter that the terminal's encoding lacks.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):  # not what a notebook or a test has put there
            stream.reconfigure(errors="backslashreplace")


def exit_with(run: Callable[[], int]) -> NoReturn:
    """Run a program and end the process with its status.

    One of several ranks ends at once after its exit handlers: threads of torch's libraries may
    still run while the interpreter takes their statics down, and that aborted 2 of 42 finished
    ranks on a busy machine ("terminate called without an active exception"), which fails the
    whole job.

    Args:
        run: Returns the exit status, or raises SystemExit.
    """
    prepare_output()
    try:
        status: int | str | None = run()
        sys.stdout.flush()
    except SystemExit as error:
        status = error.code
    except BrokenPipeError:
        # Whoever read our output has left (`| head`), and wants no more of it, nor a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except OSError as error:
        if not _output_fails():
            raise
        # What is left in the buffer would be tried again, and complained about, at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = f"error: the output cannot be written: {error.strerror}"
    except KeyboardInterrupt:  # before or after training, which ends in its own way
        print("interrupted", file=sys.stderr)
        status = 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:  # what a user's own file imports: its traceback says where
            raise
        status = (
            f"error: no package {package!r} in {sys.executable}; install what the project needs, "
            f"in its folder: pip install -c constraints.txt -e . (of an installed penstock, "
            f"`{sys.executable} -m pip check` lists all that is missing)"
        )
    if not isinstance(status, int):  # a message, which sys.exit prints, or None
        sys.exit(status)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def main() -> NoReturn:
    """Run ``penstock <command> [overrides]``."""
    command(sys.argv[1:])


def train(argv: Sequence[str] | None = None) -> NoReturn:
    """Train as ``python train.py`` does, and end the process.

    Args:
        argv: Overrides and flags; None takes those of the program. A project's own ``train.py``
            imports its components and calls this.
    """
    from penstock.pipeline.config.app import main as run

    exit_with(partial(run, argv))


def command(argv: Sequence[str]) -> NoReturn:
    """Run a command, its name first, and end the process; ``train`` is one of them."""
    if argv[:1] == ["train"]:
        train(argv[1:])
    from penstock.pipeline.commands import main as run

    exit_with(partial(run, list(argv)))
