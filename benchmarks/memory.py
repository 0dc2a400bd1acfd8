"""Memory of the loader's workers: all processes over epochs, and the time to the first batch.

    python benchmarks/memory.py PHOTOGRAPHS [--workers 1,2,3,4] [--model-s 2]

Each cell builds the loader, waits as long as building a model takes, and iterates over the epochs.
Memory is the proportional set size of all processes together, sampled in the middle of each epoch.
It would include data read through a memory map (LMDB), so this script reads files.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from family import members, private_mb, pss_mb
from harness import alternate, markdown, reply, run_cell, stop_when_terminated
from machine import describe
from photographs import find_photographs, link_photographs

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600
WAYS = {
    "threads": [],
    "processes": ["loader.engine=processes"],
}


def measure(overrides: list[str], model_s: float, epochs: int) -> dict[str, Any]:
    """Measure the seconds to the first batch, and the memory in the middle of each epoch.

    Returns:
        ``first_s``; ``memory_mb``, one for each epoch; ``worker_mb``, the private memory of each
        worker process, in descending order.
    """
    sys.path.insert(0, str(ROOT))
    from penstock import build_loader, compose

    with build_loader(compose(overrides), "train") as loader:
        time.sleep(model_s)
        start = time.perf_counter()
        first_s, memory_mb, worker_mb = None, [], []
        for _ in range(epochs):
            for number, _ in enumerate(loader):
                first_s = first_s or time.perf_counter() - start
                if number == len(loader) // 2:
                    family = members()
                    memory_mb.append(pss_mb(family))
                    others = [pid for pid in family if pid != os.getpid()]
                    worker_mb = sorted(map(private_mb, others), reverse=True)
    return {"first_s": first_s, "memory_mb": memory_mb, "worker_mb": worker_mb}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--workers", default="1,2,3,4")
    parser.add_argument("--model-s", type=float, default=2.0, help="what building a model takes")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=128)
    arguments = parser.parse_args()
    stop_when_terminated()
    counts = [int(text) for text in arguments.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name) / "photographs"
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        link_photographs(find_photographs(arguments.photographs), folder, arguments.images)
        specs = {
            f"{way}, {count}": [
                f"dataset.storage.path={folder}", "dataset.storage.labels=null",
                "dataset.val_fraction=0", "augment=imagenet", "loader=threads",
                f"loader.num_workers={count}", f"loader.batch_size={arguments.batch_size}",
                *(text.format(workers=count) for text in overrides),
            ]
            for way, overrides in WAYS.items()
            for count in counts
        }  # fmt: skip

        def one(name: str) -> Any:
            spec = {"model_s": arguments.model_s, "epochs": arguments.epochs}
            result = run_cell(__file__, {"overrides": specs[name], **spec}, timeout_s=TIMEOUT_S)
            print(f"  {name:<14} {result['memory_mb'][-1]:>6,.0f} MB", file=sys.stderr)
            return result

        results = alternate([*specs], arguments.rounds, one)
    print(describe(), "\n")
    print(report(results, counts, arguments.model_s))


def report(results: dict[str, list[Any]], counts: list[int], model_s: float) -> str:
    """Return the table as Markdown."""
    lines = []
    for way in WAYS:
        before = None
        for count in counts:
            each = results[f"{way}, {count}"]
            if not each:
                continue
            first, last = (statistics.median(r["memory_mb"][at] for r in each) for at in (0, -1))
            extra = "" if before is None else f"{(last - before[1]) / (count - before[0]):+,.0f}"
            first_s = statistics.median(r["first_s"] for r in each)
            own = [statistics.median(r["worker_mb"][:count]) for r in each if r["worker_mb"]]
            lines.append([
                f"{way}, {count}", f"{first:,.0f}", f"{last:,.0f}", extra,
                f"{statistics.median(own):,.0f}" if own else "", f"{first_s:.2f}",
            ])  # fmt: skip
            before = (count, last)
    header = ["workers", "PSS in the first epoch, MB", "in the last", "for one worker more",
              "a worker's private memory, MB", f"first batch after {model_s:g} s, s"]  # fmt: skip
    return markdown(header, lines)


if __name__ == "__main__":
    if sys.argv[1] == "--cell":
        reply(measure(**json.loads(sys.argv[2])))
    else:
        main()
