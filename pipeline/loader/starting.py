"""How worker processes start: with heavy modules there already, and deaf to Ctrl-C."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_logger = logging.getLogger(__name__)

_PRELOADED = (
    "pipeline.loader.ring.child",
    "pipeline.config.discovery",
    "numpy",
    "torch",
    "torch.utils.data",
    "cv2",
    "simplejpeg",
)
_PRELOADED_IF_USED = ("albumentations", "lmdb", "pyarrow", "PIL.Image")

_said: set[str] = set()


def process_context(name: str) -> Any:
    """The multiprocessing context of a start method, its server told what to preload."""
    context = multiprocessing.get_context(name)
    if name == "forkserver":
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
        used = [module for module in _PRELOADED_IF_USED if module in sys.modules]
        # Takes effect when the server starts; modules that are not installed are passed over.
        context.set_forkserver_preload([*_PRELOADED, *used])
    return context


def preload(name: str) -> None:
    """Let the server that processes are forked from import what they need, in the background."""
    if name == "forkserver":
        from multiprocessing import forkserver

        process_context(name)
        with interrupts_held():
            forkserver.ensure_running()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Start processes with SIGINT blocked, so that Ctrl-C reaches only the main process.

    A Ctrl-C meanwhile arrives here when the block is left.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def warn_about_cores(num_workers: int) -> None:
    """Say once that there are more workers than cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if cores is not None and num_workers > cores and "cores" not in _said:
        _said.add("cores")
        _logger.warning(
            "loader.num_workers=%d on %d CPU cores: it works, but more workers than cores "
            "take memory and gain nothing unless they wait for a network",
            num_workers, cores,
        )  # fmt: skip
