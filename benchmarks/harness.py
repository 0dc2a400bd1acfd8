"""Measure: cells in separate processes, alternating rounds, medians, Markdown tables."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from family import members

_MARK = "benchmark result: "
_ERROR_LINES = 12
_END_S = 10.0


class CellError(RuntimeError):
    """A cell failed; the message ends with the last lines of its output."""


def run_cell(
    script: str | Path, spec: dict[str, Any], *, python: str = sys.executable, timeout_s: float
) -> Any:
    """Run one measurement in a new process, then kill it and all of its descendants.

    Args:
        script: A file that takes the specification as its last argument and calls `reply`.
        spec: The specification, serialisable as JSON.
        python: The interpreter.
        timeout_s: Seconds until the cell is killed.

    Returns:
        The result that the cell passed to `reply`.

    Raises:
        CellError: The cell failed, sent no result, or timed out.
    """
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1"}
    started: list[subprocess.Popen[Any]] = []

    def start() -> None:
        started.append(
            subprocess.Popen(
                [python, str(script), "--cell", json.dumps(spec)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True,
            )
        )  # fmt: skip

    # A file, not a pipe: reading a pipe waits until every process that the cell left behind ends.
    # A thread starts the cell, because Ctrl-C in this thread could come before the id is known.
    with tempfile.TemporaryFile("w+", errors="replace") as output, ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(start).result()
            code = started[0].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CellError(f"no result within {timeout_s:g} s") from None
        finally:
            pool.shutdown()  # after this, `started` is complete
            for leader in started:
                end_session(leader)
        output.seek(0)
        said = output.read()
    for line in reversed(said.splitlines()):
        if line.startswith(_MARK):
            return json.loads(line.removeprefix(_MARK))
    tail = "\n".join(said.splitlines()[-_ERROR_LINES:])
    raise CellError(f"exit code {code}\n{tail}")


def end_session(leader: subprocess.Popen[Any]) -> None:
    """Kill every process of a session that this benchmark started, and wait until they end."""
    session = leader.pid
    assert session != os.getsid(0)
    deadline = time.monotonic() + _END_S
    while (left := members(session)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    leader.wait()


def reply(result: Any) -> None:
    """Send a cell's result to the process that runs the cell."""
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)


def keep_to_cores(count: int) -> None:
    """Restrict this process and its children to `count` of its allowed cores."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:count])


def stop_when_terminated() -> None:
    """Treat SIGTERM as Ctrl-C, which removes temporary folders and ends cells."""

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def alternate(
    names: Sequence[str], rounds: int, measure: Callable[[str], Any]
) -> dict[str, list[Any]]:
    """Measure every name once per round, forward and backward, to spread outside load evenly.

    When a name fails, print the error and skip the name in later rounds.

    Returns:
        Results by name, one for each round; an empty list for a name that failed.
    """
    results: dict[str, list[Any]] = {name: [] for name in names}
    failed: set[str] = set()
    for number in range(rounds):
        for name in names[::-1] if number % 2 else names:
            if name in failed:
                continue
            try:
                results[name].append(measure(name))
            except CellError as error:
                failed.add(name)
                results[name] = []
                print(f"{name}: failed: {error}", file=sys.stderr)
    return results


def paired(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of two measurements for each round."""
    return [a / b for a, b in zip(values, others, strict=True)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the lowest and the highest value as text."""
    return f"{min(values):,.{digits}f}–{max(values):,.{digits}f}"


def with_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and in parentheses the lowest and the highest value, as text."""
    return f"{statistics.median(values):.{digits}f} ({spread(values, digits)})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
