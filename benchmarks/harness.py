"""Measuring: cells in processes of their own, alternating rounds, medians, Markdown tables."""

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
    """A cell failed; the message ends with what it said last."""


def run_cell(
    script: str | Path, spec: dict[str, Any], *, python: str = sys.executable, timeout_s: float
) -> Any:
    """Run one measurement in a process and a session of its own, and end all that is left of it.

    Args:
        script: A file that takes the specification as its last argument and answers by `reply`.
        spec: What JSON can hold.
        python: The interpreter.
        timeout_s: Seconds after which the cell is ended.

    Returns:
        What the cell replied.

    Raises:
        CellError: It failed, replied nothing, or took too long.
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

    # A file, not a pipe, whose end would wait for every process that the cell leaves behind. A
    # thread starts the cell, since Ctrl-C in this one could come before its id is known.
    with tempfile.TemporaryFile("w+", errors="replace") as output, ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(start).result()
            code = started[0].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CellError(f"no result within {timeout_s:g} s") from None
        finally:
            pool.shutdown()  # then it is known whether anything was started
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
    """Kill every process of a session that this benchmark started, and wait until they are gone."""
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
    """Give a cell's result to the process that runs it."""
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)


def keep_to_cores(count: int) -> None:
    """Let this process and its children run on `count` of the cores that it may run on."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:count])


def stop_when_terminated() -> None:
    """Take SIGTERM as Ctrl-C, so that temporary folders go and cells end."""

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def alternate(
    names: Sequence[str], rounds: int, measure: Callable[[str], Any]
) -> dict[str, list[Any]]:
    """Measure every name once a round, forth and back, so that what else runs meets them all.

    A name that fails is said and left out from then on.

    Returns:
        Results by name, one for each round; names that failed have none.
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
    """Ratios of the rounds, each against the same round."""
    return [a / b for a, b in zip(values, others, strict=True)]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Lowest to highest, as text."""
    return f"{min(values):,.{digits}f}–{max(values):,.{digits}f}"


def with_spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and in parentheses the lowest and the highest."""
    return f"{statistics.median(values):.{digits}f} ({spread(values, digits)})"


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, the others are figures."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
