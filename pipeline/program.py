"""The programs ``penstock COMMAND`` and ``python train.py``."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

# Import names of the dependencies in pyproject.toml.
_NEEDED = frozenset(
    "PIL albumentations annotated_types cv2 hydra lmdb numpy omegaconf pyarrow pydantic rich "
    "simplejpeg torch torchmetrics yaml".split()
)


def prepare_output() -> None:
    """Replace closed output (``>&-``) by a null device, and escape letters that the terminal lacks.

    Python sets closed streams to None, and raises at such letters.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")
            setattr(sys, name, stream)
        if hasattr(stream, "reconfigure"):  # not a stream of a notebook or test
            stream.reconfigure(errors="backslashreplace")


def exit_with(run: Callable[[], int]) -> NoReturn:
    """Run a program and end the process with its exit status.

    With several ranks, end right after the exit handlers registered since this call. Threads of
    torch's libraries may still run while the interpreter destroys their statics, which aborted 2 of
    42 finished ranks on a busy machine ("terminate called without an active exception") and fails
    the whole job.

    Args:
        run: Returns the exit status, or raises SystemExit.
    """
    prepare_output()
    status: int | str | None = None

    def end() -> None:
        if isinstance(status, int):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    if is_one_of_several := int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit.register(end)  # handlers run in reverse, so this one runs last
    try:
        status = run()
        sys.stdout.flush()
    except SystemExit as error:
        status = error.code
    except BrokenPipeError:
        # The reader of our output has ended (`| head`): no traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    except KeyboardInterrupt:  # outside training, which handles it
        print("interrupted", file=sys.stderr)
        status = 128 + signal.SIGINT
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _NEEDED:  # an import of a user's file: its traceback says where
            raise
        status = (
            f"error: no package {package!r} in {sys.executable}; install what the project needs, "
            f"in its folder: pip install -c constraints.txt -e ."
        )
    if not isinstance(status, int):  # None, or a message that sys.exit prints
        sys.exit(status)
    if not is_one_of_several:  # whose handlers collect
        gc.freeze()  # nothing is left to collect
    sys.exit(status)


def main() -> NoReturn:
    """Run ``penstock <command> [overrides]``."""
    command(sys.argv[1:])


def train(argv: Sequence[str] | None = None) -> NoReturn:
    """Train as ``python train.py`` does, and end the process.

    A project's own ``train.py`` imports its components and calls this.

    Args:
        argv: Overrides and flags; None for the program's own.
    """
    gc.disable()  # imports and configs leave no garbage; `run_command` enables it

    def run() -> int:  # imports in here: Ctrl-C may come while they run
        from penstock.pipeline.config.app import main

        return main(argv)

    exit_with(run)


def command(argv: Sequence[str]) -> NoReturn:
    """Run a command by its name, ``train`` included, and end the process."""
    if argv[:1] == ["train"]:
        train(argv[1:])

    def run() -> int:
        from penstock.pipeline.commands import main

        return main(list(argv))

    exit_with(run)
