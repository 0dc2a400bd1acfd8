"""The table at the end of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def print_table(
    swept: Sequence[Sequence[str]], results: Sequence[Mapping[str, Any] | BaseException | Any]
) -> None:
    """Print what each job was and what came out of it.

    Args:
        swept: Overrides of each job.
        results: What each returned, a mapping of figures, or the exception that ended it.
    """
    from rich.console import Console
    from rich.table import Table

    names = list(dict.fromkeys(
        name for result in results if isinstance(result, Mapping) for name in result
    ))  # fmt: skip
    keys = varied_keys(swept)
    table = Table(title="1 job" if len(results) == 1 else f"{len(results)} jobs")
    for heading in ["job", *keys]:
        table.add_column(heading, overflow="fold")
    for heading in names:
        table.add_column(heading, justify="right", overflow="fold")
    if failed_jobs(results):
        table.add_column("error", overflow="fold")
    for number, (overrides, result) in enumerate(zip(swept, results, strict=True)):
        values = dict(split_override(text) for text in overrides)
        row = [str(number), *(values.get(key, "") for key in keys)]
        figures = result if isinstance(result, Mapping) else {}
        row += [_figure(figures.get(name)) for name in names]
        if isinstance(result, BaseException):
            row.append(f"{type(result).__name__}: {result}".splitlines()[0])
        table.add_row(*row)
    console = Console()
    # Where nobody looks at a window's width, no column is folded away.
    Console(width=None if console.is_terminal else 200).print(table)


def failed_jobs(results: Sequence[Any]) -> list[BaseException]:
    """What ended the jobs that failed."""
    return [result for result in results if isinstance(result, BaseException)]


def split_override(text: str) -> tuple[str, str]:
    """Key and value of an override."""
    key, _, value = text.partition("=")
    return key.lstrip("+"), value


def varied_keys(swept: Sequence[Sequence[str]]) -> list[str]:
    """Keys whose values differ between jobs; all of them if there is one job."""
    values: dict[str, set[str]] = {}
    for overrides in swept:
        for text in overrides:
            key, value = split_override(text)
            values.setdefault(key, set()).add(value)
    return [key for key, found in values.items() if len(found) > 1 or len(swept) == 1]


def _figure(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
