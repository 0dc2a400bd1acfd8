"""Pack many small files: `pack`, the writers of other libraries, and the floor of each.

    python benchmarks/pack.py [--count 10000] [--rounds 5] [--rows ours,lmdb] [--cold]

The files are small JPEG (64 x 64), in folders by class. They are read from the page cache, or with
``--cold`` from the disk, as data larger than memory would be. Every row runs in a separate process,
the rows alternate, and ratios compare the same round. There are three floors: reading every file in
one process, writing as many bytes to one file with a sync (the disk's limit), and decoding and
re-encoding each file in one thread per core. A typical user script puts every file into LMDB; its
fastest form syncs once, at the end. `pack` also finds sizes and labels, computes checksums, syncs,
can resume after a kill, and opens and compares the result. The other rows only write and close.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from family import members, processor_s
from harness import alternate, markdown, paired, reply, run_cell, stop_when_terminated, with_spread
from machine import describe

ROOT = Path(__file__).resolve().parents[1]
CLASSES = 100
TIMEOUT_S = 1800
QUALITY = 90
BATCH = 1000

ROWS = {
    "read": "reading the files alone (floor)",
    "write": "writing as many bytes, and a sync (floor)",
    "encode": "decoding and encoding alone (floor)",
    "ours": "pack to lmdb",
    "ours-one": "pack to lmdb, pack.num_workers=0",
    "ours-quality": f"pack to lmdb, pack.quality={QUALITY}",
    "lmdb": "lmdb: put, 1,000 a transaction",
    "lmdb-late": "lmdb: put, one sync at the end (the script)",
    "webdataset": "webdataset: ShardWriter",
    "pyarrow": "pyarrow: ParquetWriter, 1,000 a row group",
}
SCRIPT = "lmdb-late"
FLOOR = {"write": "write", "encode": "encode", "ours-quality": "encode"}


def write_files(folder: Path, count: int) -> None:
    """Write small JPEG files of noise, in folders by class."""
    import cv2
    import numpy as np

    rng = np.random.default_rng(0)
    images = []
    for _ in range(64):
        coarse = rng.normal(128, 60, (8, 8, 3)).astype(np.float32)
        image = cv2.resize(coarse, (64, 64), interpolation=cv2.INTER_CUBIC)
        image = np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8)
        images.append(cv2.imencode(".jpg", image)[1].tobytes())
    for number in range(CLASSES):
        (folder / f"class {number:02d}").mkdir(parents=True)
    for number in range(count):
        name = f"class {number % CLASSES:02d}/{number:07d}.jpg"
        (folder / name).write_bytes(images[number % len(images)])


def files_of(folder: Path) -> Iterator[tuple[str, bytes, int]]:
    """Yield key, content and label of every file."""
    for label, inside in enumerate(sorted(folder.iterdir())):
        for file in sorted(os.listdir(inside)):
            with open(inside / file, "rb", buffering=0) as opened:
                yield f"{inside.name}/{file}", opened.read(), label


def read(folder: Path, target: Path, workers: str) -> None:
    """Read every file once."""
    for _ in files_of(folder):
        pass


def encode(folder: Path, target: Path, workers: str) -> None:
    """Decode and re-encode every file."""
    import simplejpeg

    def once(item: tuple[str, bytes, int]) -> int:
        image = simplejpeg.decode_jpeg(item[1])
        return len(simplejpeg.encode_jpeg(image, quality=QUALITY, colorsubsampling="420"))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(once, files_of(folder), chunksize=64):
            pass


def ours(folder: Path, target: Path, workers: str, *overrides: str) -> Callable[[], Any]:
    """Run the command `pack`, with its config composed."""
    sys.path.insert(0, str(ROOT))
    from penstock.pipeline.commands import pack
    from penstock.pipeline.config.compose import configure

    words = [f"dataset.storage.path={folder}", "dataset.val_fraction=0", f"pack.path={target}"]
    config = configure([*words, f"pack.num_workers={workers}", *overrides], command="pack")
    return partial(pack.run, config)


def write(folder: Path, target: Path, workers: str) -> None:
    """Write as many bytes as the files have, a megabyte at a time."""
    left = sum(file.stat().st_size for inside in folder.iterdir() for file in os.scandir(inside))
    chunk = os.urandom(1 << 20)
    with open(target, "wb", buffering=0) as file:
        while left > 0:
            left -= file.write(chunk[:left])
        os.fsync(file.fileno())


def put(folder: Path, target: Path, workers: str, *, sync: bool = True) -> None:
    """Write values by number, and nothing else."""
    import lmdb

    env = lmdb.open(str(target), map_size=1 << 34, sync=sync)
    transaction = env.begin(write=True)
    for number, (_, content, _) in enumerate(files_of(folder)):
        transaction.put(b"%010d" % number, content)
        if number % BATCH == BATCH - 1:
            transaction.commit()
            transaction = env.begin(write=True)
    transaction.commit()
    env.sync(True)
    env.close()


def shards(folder: Path, target: Path, workers: str) -> None:
    """Write tar files."""
    import webdataset

    target.mkdir()
    with webdataset.ShardWriter(f"{target}/%06d.tar", maxcount=10_000, verbose=0) as writer:
        for number, (_, content, label) in enumerate(files_of(folder)):
            writer.write({"__key__": f"{number:09d}", "jpg": content, "cls": label})


def table(folder: Path, target: Path, workers: str) -> None:
    """Write rows in the layout of the public hubs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    rows: dict[str, list[Any]] = {"image": [], "label": []}
    with pq.ParquetWriter(str(target), schema) as writer:
        for key, content, label in files_of(folder):
            rows["image"].append({"bytes": content, "path": key})
            rows["label"].append(label)
            if len(rows["label"]) == BATCH:
                writer.write_table(pa.table(rows, schema=schema))
                rows = {"image": [], "label": []}
        writer.write_table(pa.table(rows, schema=schema))


def forget(folder: Path) -> None:
    """Drop every file from the page cache."""
    for inside in folder.iterdir():
        for file in os.scandir(inside):
            descriptor = os.open(file.path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def measure(row: str, folder: Path, target: Path, workers: str, cold: bool) -> dict[str, float]:
    """Measure files per second, and the processor time per file."""
    count = sum(1 for _ in files_of(folder))
    if cold:
        forget(folder)
    for name in {
        "lmdb": ["lmdb"],
        SCRIPT: ["lmdb"],
        "webdataset": ["webdataset"],
        "encode": ["simplejpeg"],
        "pyarrow": ["pyarrow.parquet"],
    }.get(row, []):
        __import__(name)
    others = {"read": read, "write": write, "encode": encode, "lmdb": put,
              SCRIPT: partial(put, sync=False), "webdataset": shards, "pyarrow": table}  # fmt: skip
    if row in others:
        job: Callable[[], Any] = partial(others[row], folder, target, workers)
    else:
        quality = [f"pack.quality={QUALITY}"] if row == "ours-quality" else []
        job = ours(folder, target, "0" if row == "ours-one" else workers, *quality)
    spent_s, start = processor_s(members()), time.perf_counter()
    job()
    seconds = time.perf_counter() - start
    spent_s = processor_s(members()) - spent_s
    return {"rate": count / seconds, "processor_us": 1e6 * spent_s / count}


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", default="auto", help="pack.num_workers")
    parser.add_argument("--cold", action="store_true", help="read from the disk, not its cache")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        spec = json.loads(arguments.cell)
        with tempfile.TemporaryDirectory(dir=spec["scratch"]) as target:
            folder, packed = Path(spec["folder"]), Path(target, "packed")
            reply(measure(spec["row"], folder, packed, spec["workers"], spec["cold"]))
        return
    stop_when_terminated()
    asked = arguments.rows.split(",")
    names = ["read", *(name for name in asked if name != "read")]
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"--rows: no row {unknown[0]!r}, the rows are {', '.join(ROWS)}")
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        folder = Path(scratch, "files")
        write_files(folder, arguments.count)
        os.sync()  # the system cannot drop pages before they are on the disk
        spec = {"folder": str(folder), "scratch": scratch, "workers": arguments.workers}
        spec |= {"cold": arguments.cold}

        def run(name: str) -> Any:
            result = run_cell(Path(__file__), {**spec, "row": name}, timeout_s=TIMEOUT_S)
            print(f"  {name:<14} {result['rate']:>9,.0f} files/s", file=sys.stderr)
            return result

        results = alternate(names, arguments.rounds, run)
    print(report(results, arguments))


def report(results: dict[str, list[Any]], arguments: argparse.Namespace) -> str:
    """Return the table."""
    rows = []
    for name, each in results.items():
        floor = results.get(FLOOR.get(name, "read")) or results["read"]
        if not each or len(floor) != len(each):
            continue
        ratios = paired([r["rate"] for r in each], [r["rate"] for r in floor])
        own = FLOOR.get(name, "read") == name
        script = results.get(SCRIPT) or []
        beside = [r["rate"] for r in script] if len(script) == len(each) else []
        of_script = with_spread(paired([r["rate"] for r in each], beside)) if beside else ""
        rate = statistics.median(r["rate"] for r in each)
        spent = statistics.median(r["processor_us"] for r in each)
        rows.append((ROWS[name], f"{rate:,.0f}", "1" if own else with_spread(ratios),
                     of_script, f"{spent:,.0f}"))  # fmt: skip
    header = ("row", "files/s", "of its floor", "of the script", "processor µs a file")
    where = "from the disk" if arguments.cold else "from the page cache"
    about = f"{arguments.count:,} files {where}, pack.num_workers={arguments.workers}; {describe()}"
    return f"{about}\n\n{markdown(header, rows)}"


if __name__ == "__main__":
    main()
