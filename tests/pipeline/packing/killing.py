"""Kill a packing at its steps; packing again gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.core.contracts import Storage
from penstock.pipeline.packing.run import Packing, pack
from tests.contracts.killing import killed_at


def packing_of(
    target: Path, writer: Any, name: str, sources: dict[str, Storage], **changes: Any
) -> Packing:
    """Return a packing in this process, by a writer that is registered as `name`."""
    arguments: dict[str, Any] = {
        "sources": sources, "target": target, "writer": writer, "name": name,
        "recipe": {"pack.to": name, "pack.quality": None}, "recode": None, "skip_bad": False,
        "overwrite": False, "verify_all": True, "num_workers": 0, "imports": [],
    }  # fmt: skip
    return Packing(**{**arguments, **changes})


def pack_killed(
    make: Callable[[], Packing], at: int | None, *, steps: Path | None = None
) -> int | None:
    """Run a packing by `killed_at`."""
    return killed_at(lambda: pack(make()), at, steps=steps)


def check_killed(
    make: Callable[[Path], Packing],
    folder: Path,
    contents: Callable[[Path], Any],
    *,
    kills: int | None,
) -> int:
    """Kill a packing at some of its steps; packing again must give the same bytes.

    Args:
        make: Makes the packing into a folder.
        folder: An empty folder.
        contents: Returns the content of a folder.
        kills: Number of kills, spread evenly over the steps; None kills at each.

    Returns:
        The number of steps.
    """
    whole = folder / "whole"
    whole.mkdir(parents=True)
    if kills is None:  # filling caches takes steps too, but only once
        assert pack_killed(lambda: make(folder / "cached"), None) == 0
    assert pack_killed(lambda: make(whole / "packed"), None, steps=folder / "steps") == 0
    wanted = contents(whole)
    count = int((folder / "steps").read_text())
    for step in (
        range(count) if kills is None else range(count // kills // 2, count, count // kills)
    ):
        place = folder / str(step)
        place.mkdir()
        assert pack_killed(lambda place=place: make(place / "packed"), step) is None, step
        if (place / "packed").exists():  # the folder appears when it is whole
            assert contents(place / "packed") == contents(whole / "packed")
        else:
            assert pack_killed(lambda place=place: make(place / "packed"), None) == 0, step
            assert contents(place) == wanted, f"killed at step {step}"
    return count
