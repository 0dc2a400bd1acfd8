"""The way of a batch: how many files somebody enters who follows it in a debugger."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import penstock
from penstock import build_loader, compose

ROOT = Path(penstock.__file__).parent
PACKAGES = tuple(str(ROOT / name) + "/" for name in ("core", "datasets", "pipeline", "transforms"))
MOST = 12
WAYS = {
    "sample": (["dataset=image_folder"], "read", "datasets/records/folder_storage"),
    "columns": (["dataset=memmap", "augment=as_is"], "take", "datasets/array_shards"),
    "stream": (["dataset=stream"], "read", "datasets/"),
}


@pytest.mark.parametrize("way", WAYS)
def test_few_files_lie_between_the_loop_and_the_bytes(way, data_dir):
    """Of a batch whose records were drawn with others before: samplers are asked for several."""
    overrides, method, place = WAYS[way]
    config = compose(
        [f"data_dir={data_dir}", *overrides, "loader.engine=inline", "loader.num_workers=0",
         "loader.batch_size=2", "loader.pin_memory=false", "loader.drop_last=false"]
    )  # fmt: skip
    with build_loader(config) as loader:
        assert loader._compute.way == way
        batches = iter(loader)
        for _ in range(2):
            next(batches)
        files = entered(lambda: next(batches), until=(place, method))
    assert len(files) <= MOST, "\n".join(files)


def entered(call, *, until: tuple[str, str]) -> list[str]:
    """Our files in which functions are entered in this thread, until one function returns."""
    files: dict[str, None] = {}
    arrived = threading.Event()

    def profile(frame, event, argument):
        name = frame.f_code.co_filename
        if arrived.is_set() or not name.startswith(PACKAGES):
            return
        at = name.removeprefix(f"{ROOT}/")
        if event == "call":
            files.setdefault(at)
        elif event == "return" and at.startswith(until[0]) and frame.f_code.co_name == until[1]:
            arrived.set()

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert arrived.is_set(), f"never in {until}"
    return list(files)
