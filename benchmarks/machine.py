"""Describe the machine and the versions that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

DISTRIBUTIONS = (
    "torch",
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "turbojpeg",
    "albumentations",
)


def describe(cores: int | None = None) -> str:
    """Return processor, cores, memory, load and versions, on two lines."""
    allowed = len(os.sched_getaffinity(0))
    used = f"{cores or allowed} of {allowed} cores used"
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    versions = ", ".join(f"{name} {version}" for name, version in versions_of(DISTRIBUTIONS))
    return (
        f"{processor()}, {used}, {_memory_gb():.0f} GB, {platform.system()} "
        f"{platform.release()}, load {load}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        f"Python {platform.python_version()}, {versions}"
    )


def processor() -> str:
    """Return the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def versions_of(distributions: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the name and version of each installed distribution."""
    found = []
    for name in distributions:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
