"""Read every form from a server that fails, and compare every batch with those of local files.

    python benchmarks/faults.py                                # all forms, about ten minutes
    python benchmarks/faults.py --forms zip,lmdb --outages 5   # a trial

A server on loopback answers as an object store (``s3://``) and as a web server (``http://``), and
fails: connections break, answers are 503 or half as long, an answer stalls, the server is away for
seconds, or files are replaced during an epoch. Each fault is tried with an empty cache, from the
first index to the last batch of an epoch. The script ends with status 1 if a batch differs, or a
run fails for another reason than replaced files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import CellError, markdown, reply, run_cell, stop_when_terminated

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

FORMS = ("image_folder", "csv", "zip", "webdataset", "lmdb", "hdf5", "parquet", "arrow",
         "npy_shards", "pt_shards", "memmap")  # fmt: skip
PIXELS = ("npy_shards", "pt_shards", "memmap")
LOOSE = ("image_folder", "csv")  # a file is read once, whole: a new image counts from then on
WAYS = ("s3", "http")
FAULTS = ("cut", "503", "short", "stall")
_AT_ONCE = 4
_LIMIT_S = 900.0
_FAILURES = 2  # of each file, before an answer is whole


def main() -> int:
    """Print how each form ended under each fault."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--forms", default=",".join(FORMS))
    parser.add_argument("--outages", default="5,20,50", help="seconds, separated by commas")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cell:
        reply(try_faults(**json.loads(arguments.cell)))
        return 0
    stop_when_terminated()
    faults = [
        *FAULTS,
        *(f"away {seconds} s" for seconds in arguments.outages.split(",")),
        "replaced",
    ]
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        places = write_forms(Path(scratch), arguments.forms.split(","))
        cells = [
            (form, way)
            for form in places
            for way in WAYS
            if (form, way) != ("image_folder", "http")
        ]

        def run(cell: tuple[str, str]) -> dict[str, str]:
            spec = {"form": cell[0], "way": cell[1], "folder": places[cell[0]], "faults": faults}
            try:
                found: dict[str, str] = run_cell(__file__, spec, timeout_s=_LIMIT_S)
            except CellError as error:
                found = dict.fromkeys(faults, f"FAILED: {str(error).splitlines()[-1]}")
            print(f"  {cell[0]}, {cell[1]}: {'; '.join(found.values())}", file=sys.stderr)
            return found

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            ends = list(pool.map(run, cells))
    rows = [
        [f"{form}, {way}", *found.values()] for (form, way), found in zip(cells, ends, strict=True)
    ]
    print(markdown(["form", *faults], rows))
    return int(any(end[:6] in ("WRONG ", "FAILED") for found in ends for end in found.values()))


def write_forms(scratch: Path, forms: Sequence[str]) -> dict[str, str]:
    """Write photographs, and pack them in each form; return the place of each."""
    import numpy as np
    from PIL import Image

    from penstock.pipeline.commands import main as penstock

    draw = np.random.default_rng(0)
    photographs = scratch / "photographs"
    for number in range(96):
        path = photographs / f"class{number % 3}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (6, 8, 3), np.uint8))
        coarse.resize((64, 64)).save(path)
    names = [
        path.relative_to(photographs).as_posix() for path in sorted(photographs.rglob("*.jpg"))
    ]
    lines = [f"{name},{name.partition('/')[0]}" for name in names]
    (photographs / "all.csv").write_text("\n".join(["image,label", *lines]))
    places = {}
    for form in forms:
        places[form] = str(photographs)
        if form not in ("image_folder", "csv"):
            places[form] = str(scratch / form / "train")
            source = [f"dataset.storage.path={photographs}", "dataset.val_fraction=0"]
            target = [
                f"pack.to={form}",
                f"pack.path={scratch / form}",
                f"pack.raw={int(form in PIXELS)}",
            ]
            if code := penstock(["pack", *source, *target]):
                raise SystemExit(code)
    return places


def try_faults(form: str, way: str, folder: str, faults: Sequence[str]) -> dict[str, str]:
    """Read an epoch of one form under each fault, and return how it ended."""
    from tests.object_store import BUCKET, ObjectStore

    store, ends = ObjectStore(), {}
    place = f"s3://{BUCKET}" if way == "s3" else f"{store.url}/{BUCKET}"
    os.environ.update(AWS_ENDPOINT_URL=store.url, AWS_ACCESS_KEY_ID="key", AWS_REGION="us-east-1",
                      AWS_SECRET_ACCESS_KEY="secret", AWS_ALLOW_HTTP="true")  # fmt: skip
    expected = list(batches(form, path_of(form, folder, folder, way="s3")))
    for number, fault in enumerate(["none", *faults]):
        if fault == "replaced" and form in LOOSE:
            ends[fault] = "-"
            continue
        with tempfile.TemporaryDirectory(prefix="bench-") as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            store.put(Path(folder), f"data{number}")
            store.fault, replace = fault_of(fault, store)
            path = path_of(form, f"{place}/data{number}", folder, way=way)
            start, found = time.monotonic(), []
            try:
                for digest in batches(form, path):
                    found.append(digest)
                    replace()
                end = "equal" if found == expected else "WRONG batches"
            except Exception as error:
                line = " ".join(str(error).split())
                is_right = (
                    fault == "replaced" and found == expected[: len(found)] and "changed" in line
                )
                end = "refused" if is_right else f"FAILED: {line[:160]}"
            ends[fault] = f"{end}, {time.monotonic() - start:.0f} s"
    store.close()
    return {fault: ends[fault] for fault in faults}


def path_of(form: str, place: str, folder: str, *, way: str) -> str:
    """Return the path of a form below a folder or a URL; a web server needs the files' names."""
    if form == "csv":
        return f"{place}/all.csv"
    if way == "s3":
        return place
    files = [path.relative_to(folder).as_posix() for path in sorted(Path(folder).rglob("*"))]
    names = [name for name in files if Path(name).suffix not in ("", ".txt", ".npz")]
    return f"{place}/{{{','.join(names)}}}" if len(names) > 1 else f"{place}/{names[0]}"


def batches(form: str, path: str) -> Iterator[str]:
    """Yield the digest of each batch of an epoch."""
    from penstock import build_loader, compose
    from penstock.pipeline.commands.digest import batch_digest

    given = [f"dataset={form}", f"dataset.storage.path='{path}'", "dataset.val_fraction=0",
             "augment=none", "augment.image_size=64", "loader.batch_size=8", "loader=threads",
             "loader.num_workers=2"]  # fmt: skip
    with build_loader(compose(given)) as loader:
        for batch in loader:
            yield batch_digest(batch)


def fault_of(fault: str, store: Any) -> tuple[Callable[[str, str], Any], Callable[[], None]]:
    """Return what goes wrong with a request, and what happens after each batch."""
    tries, requests, whole = Counter[str](), [0], dict(store.files)
    away_until: list[float] = []

    def fails(method: str, key: str) -> Any:
        requests[0] += 1
        if fault.startswith("away"):
            if requests[0] == 3:
                away_until.append(time.monotonic() + float(fault.split()[1]))
            return 503 if away_until and time.monotonic() < away_until[0] else None
        if method != "GET":
            return None
        tries[key] += 1
        if fault == "stall":  # of each twentieth file
            return "stall" if tries[key] == 1 and len(tries) % 20 == 1 else None
        if fault not in ("cut", "503", "short") or tries[key] > _FAILURES:
            return None
        return 503 if fault == "503" else fault

    def replace() -> None:
        if fault == "replaced":
            store.files.update(
                {key: b"\0" + content[1:-1] + b"\0" for key, content in whole.items()}
            )

    return fails, replace


if __name__ == "__main__":
    sys.exit(main())
