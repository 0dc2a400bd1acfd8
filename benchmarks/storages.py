"""The table of storages: the same records in every form, and the cost of reading each.

    python benchmarks/storages.py PHOTOGRAPHS [--count 100000] [--rounds 5] [--seconds 2]

There are two sets: small JPEG (64 x 64) in folders by class, and the photographs. Every writer that
supports a set packs it, and small images are also packed as decoded pixels. Every measurement runs
in a separate process. Forms alternate over the rounds, forward and backward, and ratios compare the
same round. All data is in the page cache. `penstock bench storages` does the same with your own
data.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from harness import markdown, paired, stop_when_terminated
from machine import describe
from pack import write_files
from photographs import find_photographs, link_photographs

ROOT = Path(__file__).resolve().parents[1]
HEADER = ["form", "random/s", "/ files", "in order/s", "/ files", "processor µs, random",
          "in order", "size, MB", "start, s", "first index, s", "memory, MB"]  # fmt: skip


def main() -> None:
    """Make the files, pack and measure them, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--count", type=int, default=100_000, help="small images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each form, over all rounds")
    parser.add_argument("--forms", default="", help="some of the forms, separated by commas")
    arguments = parser.parse_args()
    stop_when_terminated()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"
        photographs = find_photographs(arguments.photographs)
        (scratch / "photographs").mkdir()
        link_photographs(photographs, scratch / "photographs" / "class", len(photographs))
        tables = [table(scratch / "photographs", "photographs", arguments, raw=False)]
        write_files(scratch / "small", arguments.count)
        tables.append(table(scratch / "small", "small images", arguments, raw=True))
    print(describe(), *reversed(tables), sep="\n\n")


def table(folder: Path, title: str, arguments: argparse.Namespace, *, raw: bool) -> str:
    """Pack and measure the images of a folder.

    Args:
        folder: The images.
        title: The name of the images in the heading.
        arguments: Rounds and seconds.
        raw: Also pack pixels, for images of one size.
    """
    sys.path.insert(0, str(ROOT))
    from penstock.pipeline.build import open_storage, storage_opener
    from penstock.pipeline.commands.bench import BenchSettings
    from penstock.pipeline.commands.bench.storages import (
        Form,
        decoding_us,
        form_names,
        mean_bytes_of,
        measure_forms,
        pack_form,
    )
    from penstock.pipeline.commands.pack import PackSettings, make_recode
    from penstock.pipeline.config.compose import configure

    config = configure([f"dataset.storage.path={folder}", "dataset.val_fraction=0"])
    source = open_storage(config, "train")
    settings = BenchSettings(seconds=arguments.seconds, rounds=arguments.rounds)
    sizes = [int(source.index.column("size_bytes").sum(dtype="int64")), _on_disk(folder)]
    forms = [Form("image_folder", pickle.dumps(storage_opener(config, "train")), sizes[0])]
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        names = form_names([text for text in arguments.forms.split(",") if text] or True)
        for form in names:
            print(f"  packing {title} as {form}", file=sys.stderr)
            forms.append(pack_form(form, source, Path(name, form)))
        if raw:
            recode = make_recode(config, PackSettings(path=name, raw=1))
            pixels = pack_form("memmap", source, Path(name, "pixels"), recode=recode)
            pixels.name = "memmap, pixels"
            forms.append(pixels)
        print(f"  measuring {title}", file=sys.stderr)
        measure_forms(forms, [], Path(name, "caches"), settings)
    decode = decoding_us(config, source)
    return "\n\n".join([
        f"### {len(source):,} {title}, {mean_bytes_of(source) / 1e3:.1f} kB each",
        markdown(HEADER, [_row(form, forms[0]) for form in _ranked(forms)]),
        f"The files take {sizes[1] / 1e6:,.1f} MB of the disk. Decoding one takes {decode:,.0f} µs "
        f"of the processor. {arguments.rounds} rounds.",
        *(f"{form.name}: {form.why}" for form in forms if form.why),
    ])  # fmt: skip


def _on_disk(folder: Path) -> int:
    """Return the disk usage of the files below a folder, in bytes."""
    return sum(512 * path.stat().st_blocks for path in folder.rglob("*") if path.is_file())


def _ranked(forms: Sequence[Any]) -> list[Any]:
    from penstock.pipeline.commands.bench.storages import by_speed

    return by_speed(forms)


def _row(form: Any, files: Any) -> list[str]:
    def middle(value: Callable[[Any], float]) -> float:
        return median(map(value, form.rounds))

    def ratio(value: Callable[[Any], float]) -> str:
        pairs = paired([*map(value, form.rounds)], [*map(value, files.rounds)])
        return f"{median(pairs):.2f}"

    return [
        form.name,
        f"{middle(lambda found: found.random):,.0f}", ratio(lambda found: found.random),
        f"{middle(lambda found: found.sequential):,.0f}", ratio(lambda found: found.sequential),
        f"{middle(lambda found: found.random_us):,.1f}",
        f"{middle(lambda found: found.sequential_us):,.1f}",
        f"{form.size_bytes / 1e6:,.1f}", f"{middle(lambda found: found.open_s):.2f}",
        f"{form.first.open_s:.2f}", f"{(form.first.own_bytes or 0) / 1e6:,.0f}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
