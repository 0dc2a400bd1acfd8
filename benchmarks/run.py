"""The loaders' table: ours and its peers on the same work, on this machine, in one run.

    python benchmarks/run.py PHOTOGRAPHS [--peers-python PATH]... [--rows ours,grain] [--rounds 5]

Work: JPEG photographs in the page cache to RandomResizedCrop(224), a horizontal flip and uint8
batches of 128, shuffled, with two workers on two cores. Every row runs in a separate process. The
rows alternate over the rounds, and in each round a first epoch warms up. The report lists peers
that neither this interpreter nor one of ``--peers-python`` can import. At the end, the script
prints the Markdown for README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import (
    CellError,
    alternate,
    markdown,
    paired,
    run_cell,
    spread,
    stop_when_terminated,
)
from machine import describe
from photographs import find_photographs, link_photographs, make_large
from rows import ROWS, Row, Work
from targets import best_of, targets_table

CELL = Path(__file__).with_name("one_row.py")
TITLES = {
    "photographs": "Photographs as they are",
    "prepared": "Prepared data",
    "large": "Photographs of 12 megapixels",
}
# Large photographs: number of different ones, of links, and of images in a batch.
LARGE_DIFFERENT, LARGE_COUNT, LARGE_BATCH = 16, 128, 16


def main() -> None:
    """Prepare, measure, and print the tables."""
    arguments = parse()
    stop_when_terminated()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        (scratch / "tmp").mkdir()
        # Removing the folder also removes caches and leftovers of the rows.
        os.environ |= {"XDG_CACHE_HOME": f"{scratch}/cache", "HF_HOME": f"{scratch}/hf"}
        os.environ["TMPDIR"] = f"{scratch}/tmp"
        rows = select(arguments.rows)
        pythons, versions, missing = find(rows, arguments)
        rows = [row for row in rows if row.name in pythons]
        works = lay_out(rows, scratch, arguments)
        for row in rows:
            prepare(row, works[row.name], pythons[row.name], arguments, missing)
        names = [row.name for row in rows if row.name not in missing]
        by_name = {row.name: row for row in rows}

        def measure(name: str) -> Any:
            row, spec = by_name[name], {"do": "measure", "epochs": arguments.epochs}
            spec |= {"work": asdict(works[name])}
            result = cell(row, spec, pythons[name], arguments.timeout_s)
            print(f"  {name:<24} {result['rate']:>8,.0f} images/s", file=sys.stderr)
            return result

        results = alternate(names, arguments.rounds, measure)
    print(report([by_name[name] for name in names], results, versions, missing, arguments))
    if arguments.json:
        arguments.json.write_text(json.dumps({"results": results, "versions": versions}, indent=1))


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument(
        "--rows", default="", help="names, their beginnings, or groups: ours,grain,large"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="that are timed in each round")
    parser.add_argument("--workers", type=int, default=2, help="of every row, and cores they get")
    parser.add_argument("--images", type=int, default=2000, help="photographs repeat up to these")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument(
        "--decoder", choices=["cv2", "simplejpeg"], default="cv2",
        help="what peers that leave decoding to their user decode with",
    )  # fmt: skip
    parser.add_argument(
        "--peers-python", type=Path, action="append", default=[],
        help="another interpreter that peers may be installed for",
    )  # fmt: skip
    parser.add_argument("--timeout-s", type=float, default=900, help="for one row in one round")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    return parser.parse_args()


def select(text: str) -> list[Row]:
    """Return rows whose name begins with, or whose group is, one of the comma-separated words."""
    words = [word for word in text.split(",") if word]
    chosen = [row for row in ROWS if not words or any(row.matches(word) for word in words)]
    if not chosen:
        known = ", ".join(row.name for row in ROWS)
        raise SystemExit(f"--rows: no row matches {text!r}, the rows are {known}")
    return chosen


def cell(row: Row, spec: dict[str, Any], python: str, timeout_s: float) -> Any:
    """Run a row's cell."""
    whole = {"module": row.module, "option": row.option, **spec}
    return run_cell(CELL, whole, python=python, timeout_s=timeout_s)


def find(
    rows: Sequence[Row], arguments: argparse.Namespace
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the interpreter of each row, versions by peer, and errors of rows without one."""
    pythons = {row.name: sys.executable for row in rows if row.kind != "peer"}
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    answers: dict[tuple[str, str], Any] = {}
    for row in rows:
        for python in (sys.executable, *map(str, arguments.peers_python)):
            if row.name in pythons:
                break
            key = (row.module, python)
            if key not in answers:
                try:
                    answers[key] = cell(row, {"do": "check"}, python, arguments.timeout_s)
                except CellError as error:
                    answers[key] = str(error).splitlines()[-1]
            if isinstance(answers[key], str):
                missing.setdefault(row.name, f"not installed: {answers[key]}")
                continue
            pythons[row.name] = python
            versions[row.module] = ", ".join(" ".join(pair) for pair in answers[key])
    return pythons, versions, {n: why for n, why in missing.items() if n not in pythons}


def lay_out(rows: Sequence[Row], scratch: Path, arguments: argparse.Namespace) -> dict[str, Work]:
    """Link or make the photographs that the rows need, and return the work of each row."""
    photographs = find_photographs(arguments.photographs)
    folders = {"photographs": scratch / "photographs", "large": scratch / "large"}
    link_photographs(photographs, folders["photographs"], arguments.images)
    if any(row.group == "large" for row in rows):
        make_large(photographs, folders["large"], different=LARGE_DIFFERENT, count=LARGE_COUNT)
    return {
        row.name: Work(
            photographs=str(folders["large" if row.group == "large" else "photographs"]),
            prepared=str(scratch / (row.prepares or "nothing")),
            batch_size=LARGE_BATCH if row.group == "large" else arguments.batch_size,
            size=arguments.size,
            workers=arguments.workers,
            decoder=arguments.decoder,
        )
        for row in rows
    }


def prepare(
    row: Row, work: Work, python: str, arguments: argparse.Namespace, missing: dict[str, str]
) -> None:
    """Convert a row's data, unless already converted; print a failure and skip the row."""
    if row.prepares is None or Path(work.prepared).exists():
        return
    try:
        cell(row, {"do": "prepare", "work": asdict(work)}, python, arguments.timeout_s)
    except CellError as error:
        missing[row.name] = f"preparing failed: {str(error).splitlines()[-1]}"
        print(f"{row.name}: {error}", file=sys.stderr)


def report(
    rows: Sequence[Row],
    results: Mapping[str, list[dict[str, float]]],
    versions: Mapping[str, str],
    missing: Mapping[str, str],
    arguments: argparse.Namespace,
) -> str:
    """Return the whole report as Markdown."""
    parts = [
        describe(arguments.workers),
        f"{arguments.images} images, {arguments.rounds} rounds of {arguments.epochs} epochs, "
        f"{arguments.workers} workers, peers decode with {arguments.decoder}",
    ]
    rates = {name: [result["rate"] for result in each] for name, each in results.items()}
    for group, title in TITLES.items():
        members = [row for row in rows if row.group == group and rates[row.name]]
        if members:
            parts += [f"### {title}", table(members, results, rates)]
    peers = [row.name for row in rows if row.kind == "peer" and row.group == "photographs"]
    efforts = {name: [result["processor_us"] for result in each] for name, each in results.items()}
    parts += [text for text in [targets_table(rates, efforts, peers)] if text]
    if versions:
        parts.append(f"Versions: {'; '.join(versions.values())}.")
    absent = dict(missing)
    absent |= {name: "failed, see above" for name, each in results.items() if not each}
    if absent:
        parts.append("Not measured: " + "; ".join(f"{n} ({why})" for n, why in absent.items()))
    return "\n\n".join(parts)


def table(
    rows: Sequence[Row],
    results: Mapping[str, list[dict[str, float]]],
    rates: Mapping[str, list[float]],
) -> str:
    """Return the table of a group; ratios are medians over the rounds."""
    floor = next((row.name for row in rows if row.kind == "floor"), None)
    best = best_of(rates, [row.name for row in rows if row.kind == "peer"])

    def median(name: str, key: str) -> float:
        return statistics.median(result[key] for result in results[name])

    def ratio(name: str, other: str | None) -> str:
        if other is None:
            return ""
        return f"{statistics.median(paired(rates[name], rates[other])):.2f}"

    return markdown(
        ["what", "images/s", "/ floor", "/ best peer", "spread", "processor µs an image",
         "PSS, MB", "built and first batch, s"],
        [
            [row.label, f"{median(row.name, 'rate'):,.0f}", ratio(row.name, floor),
             ratio(row.name, best), spread(rates[row.name]),
             f"{median(row.name, 'processor_us'):,.0f}", f"{median(row.name, 'memory_mb'):,.0f}",
             f"{median(row.name, 'open_s') + median(row.name, 'first_s'):.2f}"]
            for row in rows
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
