"""Signatures of library classes, kept on disk by version: importing torch costs seconds.

They are found out by a process of their own, `pipeline.config.survey`, the first
time that a version is met: all common classes of the library at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.config.allowed import FAMILIES, Family

_FORMAT = 1
_ROOT = Path(__file__).resolve().parents[2]


def describe(target: str, family: Family) -> dict[str, Any] | str:
    """What a class takes, or one line that says why a config may not name it.

    Returns:
        ``arguments``: {name: [type in notation, default]}, ``takes_any`` and
        ``takes_positional``.
    """
    if not _installed(family.distribution):
        return (
            f"{target!r}: the package {family.distribution} is missing; run: "
            f"pip install {family.distribution}"
        )
    known = _known(family.distribution)
    if target not in known:
        if known and target.rpartition(".")[0] == family.name:  # all of these are known
            return f"{target!r}: {family.name} has no {family.what} of this name"
        known.update(_find_out(target, family.distribution))
        _write(family.distribution, known)
    return known[target]


def names_of(family: Family) -> list[str]:
    """Targets of a family that are known already, to find the nearest name."""
    known = _known(family.distribution) if _installed(family.distribution) else {}
    return [
        name for name, found in known.items()
        if name.startswith(f"{family.name}.") and not isinstance(found, str)
    ]  # fmt: skip


def cache_file(distribution: str) -> Path:
    """Where the signatures of the installed version are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    version = importlib.metadata.version(distribution)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    # What may be named decides what was looked at.
    allowed = hashlib.sha1(repr((_FORMAT, FAMILIES)).encode()).hexdigest()[:8]
    name = f"{distribution}-{version}-py{python}-{allowed}.json"
    return Path(base).expanduser() / "penstock" / "signatures" / name


@cache
def _installed(distribution: str) -> bool:
    """Whether there is a library at all; some are extras."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version(distribution)
        return True
    return False


@cache
def _known(distribution: str) -> dict[str, Any]:
    """What this process knows of a distribution, at first what the disk has."""
    file = cache_file(distribution)
    if not file.exists():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError:  # damaged: made anew
        return {}


def _find_out(target: str, distribution: str) -> dict[str, Any]:
    """Describe a target, and all common ones of its library, in a process of its own."""
    environment = {**os.environ, "NO_ALBUMENTATIONS_UPDATE": "1", "PYTHONPATH": str(_ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline.config.survey", target, distribution],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"looking at {target} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _write(distribution: str, known: dict[str, Any]) -> None:
    file = cache_file(distribution)
    # In a home that cannot be written the next process has to ask again, and that is all.
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as out:
            json.dump(known, out)
        os.replace(out.name, file)
