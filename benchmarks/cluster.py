"""Batches computed by Ray actors: their cost on the same cores, and the gain from other cores.

    python benchmarks/cluster.py PHOTOGRAPHS [--count 960] [--rounds 3]

Loaders decode photographs and resize them to 224, in batches of 64. The first table compares, on
the same two cores, worker processes, actors of `loader=ray`, and Ray Data's own ``map`` and
``iter_torch_batches``. For the second, the consumer has one core, on which it computes 80 ms for
every batch itself. A worker process shares this core, or an actor's node is pinned to the other
core. Loaders take turns, and the last of three epochs counts. The last table simulates the rates of
many actors from the measured times of an actor and the consumer for a batch.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import (
    alternate,
    keep_to_cores,
    markdown,
    paired,
    reply,
    run_cell,
    stop_when_terminated,
    with_spread,
)
from machine import describe
from photographs import find_photographs, link_photographs

ROOT = Path(__file__).resolve().parents[1]
SIDE = 224
BATCH = 64
SAME = ["processes", "ray", "Ray Data"]
FEW = ["processes, one core", "ray, another core"]
ACTORS = (2, 4, 8, 16, 32, 64, 128, 256)
_STORE_BYTES = 1 << 30
_LINKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}


def main() -> None:
    """Measure the loaders by turns, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--count", type=int, default=960)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    stop_when_terminated()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name) / "all"
        link_photographs(find_photographs(arguments.photographs), folder, arguments.count)

        def measure(cell: str) -> Any:
            return run_cell(__file__, {"cell": cell, "root": str(folder)}, timeout_s=600)

        cells = [*SAME, *FEW]
        if find_spec("pandas") is None:
            print("Not measured: Ray Data (not installed: pip install 'ray[data]')")
            cells.remove("Ray Data")
        found = alternate(cells, arguments.rounds, measure)
    print(describe())
    for cells in (SAME, FEW):
        peers = [each["rate"] for each in found[cells[0]]]
        rows = []
        for cell in cells:
            rates = [each["rate"] for each in found.get(cell, ())]
            if rates and peers:
                beside = with_spread(paired(rates, peers)) if cell != cells[0] else ""
                rows.append([cell, with_spread(rates), beside])
        header = ["loader", "photographs/s", f"/ {cells[0]}"]
        print("", markdown(header, rows), sep="\n")
    if measured := found["ray"]:
        times = sorted(measured, key=lambda each: each["rate"])[len(measured) // 2]
        print("", simulated(times["batch_s"], times["consumer_s"]), sep="\n")


def simulated(batch_s: list[float], consumer_s: float) -> str:
    """Return a table of the photographs per second that many actors give one consumer.

    Args:
        batch_s: Measured seconds of an actor's thread for a batch; the simulation draws from them.
        consumer_s: Seconds of processor time that the consumer's process takes for a batch.
    """
    size_bytes = BATCH * SIDE * SIDE * 3
    rows = []
    for actors in ACTORS:
        row = [str(actors), f"{_simulate(actors, batch_s, consumer_s) * BATCH:,.0f}"]
        for rate in _LINKS.values():
            taken_s = max(consumer_s, size_bytes / rate)
            row.append(f"{_simulate(actors, batch_s, taken_s) * BATCH:,.0f}")
        rows.append(row)
    mean_s = sum(batch_s) / len(batch_s)
    said = (
        f"Simulated, photographs/s; an actor takes {mean_s * 1e3:.0f} ms for a batch, the "
        f"consumer {consumer_s * 1e3:.2f} ms:"
    )
    return f"{said}\n\n{markdown(['actors', 'same machine', *_LINKS], rows)}"


def _simulate(actors: int, batch_s: list[float], consumer_s: float, batches: int = 4000) -> float:
    """Return batches per second: each actor computes two ahead, one consumer takes in order."""
    rng = random.Random(0)
    depth, ready = 2 * actors, [0.0] * actors  # when each actor is free
    heapq.heapify(ready)
    done: list[float] = []
    taken: list[float] = []
    for number in range(batches):
        asked = taken[number - depth] if number >= depth else 0.0
        done.append(max(asked, heapq.heappop(ready)) + rng.choice(batch_s))
        heapq.heappush(ready, done[-1])
        taken.append(max(done[-1], taken[-1] if taken else 0.0) + consumer_s)
    half = batches // 2
    return half / (taken[-1] - taken[-1 - half])


def _cluster(core: int | None) -> None:
    """Start a cluster; its actors run on `core`, or wherever this process may."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    import ray
    from ray.cluster_utils import Cluster

    here = os.sched_getaffinity(0)
    options = {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    first = {"num_cpus": 0 if core is not None else 4, **options}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    if core is not None:
        os.sched_setaffinity(0, {core})
        cluster.add_node(num_cpus=2, **options)
        os.sched_setaffinity(0, here)
    ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)


def _ours(root: str, engine: str, workers: int) -> Any:
    from penstock import build_loader, compose

    return build_loader(
        compose(
            [f"dataset.storage.path={root}", "dataset.val_fraction=0", "augment=none",
             f"augment.image_size={SIDE}", f"loader={engine}", f"loader.num_workers={workers}",
             f"loader.batch_size={BATCH}"]
        )
    )  # fmt: skip


def _ray_data(root: str, workers: int) -> Any:
    """Iterate over the same photographs by Ray Data: its tasks read, decode, resize and batch."""
    import cv2
    import numpy as np
    import ray

    ray.data.DataContext.get_current().enable_progress_bars = False

    def decoded(row: dict[str, Any]) -> dict[str, Any]:
        cv2.setNumThreads(0)
        image = cv2.imdecode(np.frombuffer(row["bytes"], np.uint8), cv2.IMREAD_COLOR)
        return {"image": cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA)}

    data = ray.data.read_binary_files(root, file_extensions=["jpg"]).map(
        decoded, concurrency=workers
    )
    return lambda: data.iter_torch_batches(batch_size=BATCH)


def cell(spec: dict[str, Any]) -> None:
    """Measure one loader."""
    keep_to_cores(2)
    here, there = sorted(os.sched_getaffinity(0))[:2]
    name, root = spec["cell"], spec["root"]
    workers, step_s = 2, 0.0
    if name in FEW:
        os.sched_setaffinity(0, {here})
        workers, step_s = 1, 0.08
    if "ray" in name.lower():
        _cluster(there if name in FEW else None)
    loader: Any
    if name == "Ray Data":
        epoch, stats = _ray_data(root, workers), None
    else:
        loader = _ours(root, name.split(",")[0], workers)
        epoch, stats = lambda: loader, loader.stats
    batch_s: list[float] = []
    for _ in range(3):
        rows, begun, used = 0, time.perf_counter(), time.process_time()
        for batch in epoch():
            rows += len(batch["image"])
            until = time.thread_time() + step_s
            while time.thread_time() < until:
                pass
        took_s, used_s = time.perf_counter() - begun, time.process_time() - used
        batch_s.append(workers * took_s * BATCH / rows)
    assert stats is None or stats.bad_samples == 0
    reply({"rate": rows / took_s, "batch_s": batch_s[1:], "consumer_s": used_s * BATCH / rows})


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent)]
    if sys.argv[1] == "--cell":
        cell(json.loads(sys.argv[2]))
    else:
        main()
