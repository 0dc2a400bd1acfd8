"""Kill, stop and crash workers at random moments, and compare every batch with the inline run's.

    python benchmarks/kills.py                   # 500 signals, on generated photographs
    python benchmarks/kills.py --signals 6       # a trial

The script runs `loader=processes` repeatedly over files, which it decodes, crops and flips. After
each batch it sends SIGKILL, SIGSTOP or SIGSEGV to a random worker at a random moment. It ends with
status 1 if a batch differs or a record was quarantined.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from penstock import build_loader, compose
from penstock.pipeline.commands.digest import batch_digest

_SIGNALS = [*[signal.SIGKILL] * 4, *[signal.SIGSEGV] * 3, signal.SIGSTOP]
_LIMIT_S = 540.0


def write_photographs(folder: Path, count: int = 240) -> None:
    """Write JPEG files of noise, in a folder for each of three classes."""
    draw = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % 3}" / f"{number:04d}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (12, 16, 3), np.uint8))
        coarse.resize((320, 240)).save(path)


def hit(loader, draw: random.Random, sent: Counter[str]) -> None:
    """Send a signal to a worker drawn at random, unless the last one has not been replaced yet."""
    workers = list(getattr(loader._scheduler._executor, "_workers", ()))
    if workers and all(worker.is_ready for worker in workers):
        number = draw.choice(_SIGNALS)
        with suppress(ProcessLookupError):
            os.kill(draw.choice(workers).child.pid, number)
            sent[signal.Signals(number).name] += 1


def main() -> int:
    """Print how many signals arrived, how many batches came, and how many were wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--signals", type=int, default=500)
    wanted, start, draw = parser.parse_args().signals, time.monotonic(), random.Random(0)
    logging.disable(logging.WARNING)
    sent: Counter[str] = Counter()
    batches = wrong = epochs = 0
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder))
        given = [f"dataset.storage.path={folder}", "dataset.val_fraction=0", "augment=imagenet",
                 "augment.image_size=64", "loader.batch_size=4", "loader.timeout_s=2"]  # fmt: skip
        inline = build_loader(compose([*given, "loader=inline"]))
        processes = [*given, "loader=processes", "loader.num_workers=4"]
        with build_loader(compose(processes)) as loader:
            while sent.total() < wanted and time.monotonic() - start < _LIMIT_S:
                for batch, alike in zip(loader, inline, strict=True):
                    batches += 1
                    wrong += batch_digest(batch) != batch_digest(alike)
                    if sent.total() < wanted:  # at any moment of the next batches
                        threading.Timer(draw.uniform(0, 0.3), hit, (loader, draw, sent)).start()
                epochs += 1
            replaced, held = loader.stats.workers().restarts, loader.state_dict()["quarantined"]
    print(f"signals {sent.total()}: {', '.join(f'{n} {c}' for n, c in sorted(sent.items()))}")
    print(f"workers replaced {replaced}; quarantined {len(held)}; epochs {epochs}")
    print(f"batches {batches}, wrong {wrong}, {time.monotonic() - start:.0f} s")
    return int(bool(wrong or held or sent.total() < wanted))


if __name__ == "__main__":
    sys.exit(main())
