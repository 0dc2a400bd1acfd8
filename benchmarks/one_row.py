"""Check, prepare or measure one row of the loaders' table, in a separate process."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

from family import TICK_S, members, processor_s, pss_mb
from harness import keep_to_cores, reply
from machine import versions_of
from rows import Work


def check(module: Any) -> list[tuple[str, str]]:
    """Import the libraries of a row, and return their versions."""
    for name in module.LIBRARIES:
        import_module(name)
    return versions_of(module.DISTRIBUTIONS)


def measure(module: Any, option: str, work: Work, epochs: int) -> dict[str, float]:
    """Time `epochs` epochs after one that warms up, then run one more for the memory.

    Returns:
        ``rate``, images per second; ``processor_us``, processor time per image of all processes;
        ``first_s``, from the first `iter` to the first batch; ``open_s``, building the loader;
        ``memory_mb``, the proportional set size of all processes in the middle of an epoch.
    """
    for name in module.LIBRARIES:  # importing is not part of building
        import_module(name)
    start = time.perf_counter()
    epoch = module.open_batches(work, option)
    opened = time.perf_counter()
    first_s, batches = 0.0, 0
    for batch in epoch():
        if not batches:
            first_s = time.perf_counter() - opened
            _check_batch(batch, work)
        batches += 1

    images = 0
    spent_s, start_s = processor_s(members()), time.perf_counter()
    for _ in range(epochs):
        for batch in epoch():
            images += _images_in(batch)
    wall_s = time.perf_counter() - start_s
    spent_s = max(TICK_S, processor_s(members()) - spent_s)

    memory_mb, batch = 0.0, None  # else memory would include the last batch above
    for number, _ in enumerate(epoch()):
        if number == batches // 2:
            memory_mb = pss_mb(members())
    return {
        "rate": images / wall_s,
        "processor_us": 1e6 * spent_s / images,
        "first_s": first_s,
        "open_s": opened - start,
        "memory_mb": memory_mb,
    }


def _array(batch: Any) -> Any:
    if isinstance(batch, dict):
        return batch["image"]
    return batch[0] if isinstance(batch, (list, tuple)) else batch


def _images_in(batch: Any) -> int:
    return batch if isinstance(batch, int) else len(_array(batch))


def _check_batch(batch: Any, work: Work) -> None:
    if not isinstance(batch, int):
        array = _array(batch)
        shape, dtype = tuple(array.shape), str(array.dtype).removeprefix("torch.")
        expected = (work.batch_size, work.size, work.size, 3)
        if (shape, dtype) != (expected, "uint8"):
            raise RuntimeError(f"other work than asked for: {dtype} {shape}, not uint8 {expected}")


def main() -> None:
    """Run the task of the specification, which is JSON in the last argument."""
    spec = json.loads(sys.argv[-1])
    module: Any = import_module(f"rows.{spec['module']}")
    if spec["do"] == "check":
        reply(check(module))
        return
    work = Work(**spec["work"])
    if spec["do"] == "prepare":
        module.prepare(work, spec["option"])
        reply(None)
        return
    keep_to_cores(work.workers)
    reply(measure(module, spec["option"], work, spec["epochs"]))


if __name__ == "__main__":
    main()
