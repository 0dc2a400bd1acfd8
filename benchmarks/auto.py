"""What the engine that chooses gives beside a training step, against every fixed choice.

Photographs are read, cropped, resized and flipped (``augment=imagenet``) into batches of 64, and a
step of matrix products computes beside them: a short one on one thread, for which the loader is
the limit, and a long one on two. A cell is a process of its own: it takes batches until
``loader=auto`` has chosen, and then as many as are timed. Cells take turns; each ratio is of the
same round.

    python benchmarks/auto.py PHOTOGRAPHS [--rounds 5] [--batches 60] [--steps 8x1,50x2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from family import members, processor_s
from harness import alternate, markdown, paired, reply, run_cell, stop_when_terminated, with_spread
from machine import describe
from photographs import find_photographs, link_photographs

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600
SIDE = 512
WAYS = {
    "auto": ["loader=auto"],
    "1 thread": ["loader=threads", "loader.num_workers=1"],
    "2 threads": ["loader=threads", "loader.num_workers=2"],
    "1 process": ["loader=processes", "loader.num_workers=1", "loader.processes=1"],
    "2 processes": ["loader=processes", "loader.num_workers=2", "loader.processes=2"],
}


def step_of(threads: int, products: int) -> Any:
    """A step of `products` matrix products on `threads` threads."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    weights = torch.randn(SIDE, SIDE)
    out = torch.empty_like(weights)

    def step() -> None:
        for _ in range(products):
            torch.mm(weights, weights, out=out)

    return step


def products_for(milliseconds: float, threads: int) -> int:
    """How many products take so long, by the median of some that run alone."""
    step = step_of(threads, 1)
    times = []
    for _ in range(60):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return max(1, round(milliseconds / 1e3 / statistics.median(times)))


def measure(
    overrides: list[str], threads: int, products: int, warm: int, batches: int
) -> dict[str, Any]:
    """Batches a second of the loop, and the processor time of one batch, steps included."""
    sys.path.insert(0, str(ROOT))
    from penstock import build_loader, compose

    step = step_of(threads, products)
    with build_loader(compose(overrides), "train") as loader:
        stream = (batch for _ in iter(int, 1) for batch in loader)
        calibration = getattr(loader._engine, "calibration", None)
        for number, _ in enumerate(stream, start=1):
            step()
            if number >= warm and (calibration is None or calibration.is_over):
                break
        spent_s, start = processor_s(members()), time.perf_counter()
        for _ in islice(stream, batches):
            step()
        wall_s, spent_s = time.perf_counter() - start, processor_s(members()) - spent_s
        stream.close()
        return {
            "rate": batches / wall_s,
            "processor_ms": 1e3 * spent_s / batches,
            "choice": loader.engine_choice,
        }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--warm", type=int, default=30, help="batches before those timed, at least")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--steps", default="8x1,50x2", help="milliseconds x threads, by commas")
    arguments = parser.parse_args()
    stop_when_terminated()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the trainer does
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name) / "photographs"
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        link_photographs(find_photographs(arguments.photographs), folder, arguments.images)
        common = [
            f"dataset.storage.path={folder}", "dataset.storage.labels=null",
            "dataset.val_fraction=0", "augment=imagenet",
            f"loader.batch_size={arguments.batch_size}",
        ]  # fmt: skip
        print(describe(), "\n")
        for text in arguments.steps.split(","):
            milliseconds, _, count = text.partition("x")
            threads = int(count)
            products = products_for(float(milliseconds), threads)

            def one(way: str, threads: int = threads, products: int = products) -> Any:
                spec = {"overrides": [*common, *WAYS[way]], "threads": threads}
                spec |= {"products": products, "warm": arguments.warm}
                spec |= {"batches": arguments.batches}
                return run_cell(__file__, spec, timeout_s=TIMEOUT_S)

            results = alternate([*WAYS], arguments.rounds, one)
            print(f"A step of {milliseconds} ms on {count} thread(s), {products} products:\n")
            print(report(results), "\n")


def report(results: dict[str, list[Any]]) -> str:
    """The table as Markdown, and what auto chose."""
    rates = {way: [each["rate"] for each in found] for way, found in results.items() if found}
    fixed = [way for way in rates if way != "auto"]
    if not fixed:
        return "nothing to compare with: every fixed choice failed"
    best = max(fixed, key=lambda way: statistics.median(rates[way]))
    lines = []
    for way, each in rates.items():
        spent = statistics.median(result["processor_ms"] for result in results[way])
        ratio = with_spread(paired(each, rates[best]))
        lines.append([way, with_spread(each, 1), f"{spent:.1f}", ratio])
    header = ["loader", "batches/s", "processor time, ms a batch", f"of the best fixed ({best})"]
    chosen = "".join(f"\n- {result['choice']}" for result in results["auto"])
    return f"{markdown(header, lines)}\n\nauto chose, a round each:{chosen}"


if __name__ == "__main__":
    if sys.argv[1] == "--cell":
        reply(measure(**json.loads(sys.argv[2])))
    else:
        main()
