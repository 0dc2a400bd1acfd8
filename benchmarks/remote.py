"""Photographs in tar shards behind a slow link: each loader's share of the bandwidth.

    python benchmarks/remote.py PHOTOGRAPHS [--count 6000] [--latency-ms 20] [--mb-per-s 100]
        [--peers-python PATH]

An object store in a separate process answers each request after the latency, and sends all answers
together no faster than the link. No loader decodes records, because that would measure the
processor. Our loader reads all shards in random order by their index, or by
``sampler=shard_shuffle``, and fills its cache. The webdataset library streams shards in random
order and shuffles in a buffer. mosaicml-streaming and litdata read data from their own writers,
with their default shuffling. They may run under another interpreter. The baseline is torch's
DataLoader, with a request per record. Memory is the peak of the largest process. Loaders take turns
over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from harness import alternate, markdown, reply, run_cell, stop_when_terminated, with_spread
from machine import describe
from photographs import find_photographs, link_photographs

ROOT = Path(__file__).resolve().parents[1]
HEADER = ["loader", "MB/s", "of the line", "peak MB", "from the cache, MB/s", "/ files"]
OURS, SHUFFLED = "ours, random over all shards", "ours, shard_shuffle, window=8"
UNCACHED = "ours, random, dataset/cache=none"
WORKERS, BATCH = 4, 64


def main() -> None:
    """Write the shards, serve them, measure the loaders by turns, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photographs", type=Path, help="a folder of JPEG files, at any depth")
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--mb-per-s", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers-python", help="an interpreter that peers are installed for")
    arguments = parser.parse_args()
    stop_when_terminated()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        scratch = Path(name)
        link_photographs(find_photographs(arguments.photographs), scratch / "all", arguments.count)
        served = {**dict.fromkeys(CELLS, _pack(scratch)), **_prepared(scratch, arguments)}
        spec = {
            "latency_s": arguments.latency_ms / 1e3,
            "bytes_per_s": arguments.mb_per_s * 1e6,
        }
        found = alternate(
            [*served],
            arguments.rounds,
            lambda loader: run_cell(
                __file__,
                {**spec, "loader": loader, "shards": str(served[loader]),
                 "cache": tempfile.mkdtemp(dir=scratch)},
                python=sys.executable if loader in CELLS else arguments.peers_python,
                timeout_s=600,
            ),
        )  # fmt: skip
    rows = [
        [
            loader,
            with_spread([each["mb_per_s"] for each in rounds], 1),
            with_spread([each["mb_per_s"] / arguments.mb_per_s for each in rounds]),
            with_spread([each["peak_mb"] for each in rounds], 0),
            *(with_spread([each[key] for each in rounds]) for key in ("cached", "to_files")
              if key in rounds[0]),
        ]
        for loader, rounds in found.items()
        if rounds
    ]  # fmt: skip
    rows = [[*row, *[""] * (len(HEADER) - len(row))] for row in rows]
    print(describe(), markdown(HEADER, rows), sep="\n\n")


def _pack(scratch: Path) -> Path:
    from penstock.datasets.storages.image_folder import ImageFolder
    from penstock.datasets.storages.webdataset import WebDatasetWriter
    from penstock.datasets.writing import write_storage

    write_storage(
        WebDatasetWriter(shard_records=200), scratch / "shards", ImageFolder(f"{scratch}/all")
    )
    return scratch / "shards"


def _prepared(scratch: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Write the data of the peers by the other interpreter, if given."""
    made = {}
    for loader, (module, _) in PEERS.items() if arguments.peers_python else ():
        folder = made[loader] = scratch / module
        work = {"photographs": str(scratch / "all"), "prepared": str(folder), "batch_size": BATCH,
                "size": 0, "workers": WORKERS, "decoder": "none"}  # fmt: skip
        spec = {"prepare": module, "work": work}
        run_cell(__file__, spec, python=arguments.peers_python, timeout_s=600)
    return made


def _ours(url: str, shards: Path, *more: str) -> dict[str, float]:
    # Import libraries before the clock starts, as for the other loaders.
    import cv2  # noqa: F401
    import torch  # noqa: F401

    from penstock import build_loader, compose

    def measured(path: str, epochs: int) -> list[float]:
        given = ["dataset=webdataset", f"dataset.storage.path={path}", "dataset/decode=raw",
                 "augment=as_is", "collate=list", "dataset.val_fraction=0", "loader=threads",
                 f"loader.num_workers={WORKERS}", f"loader.batch_size={BATCH}", *more]  # fmt: skip
        rates = []
        with build_loader(compose(given), "train") as loader:
            for epoch in range(epochs):
                loader.set_epoch(epoch)
                rates.append(_rate(loader, lambda batch: sum(map(len, batch["image"]))))
        return rates

    if more:
        return {"mb_per_s": measured(url, 1)[0]}
    first, again, _ = measured(url, 3)
    files = measured(str(shards), 3)[2]
    return {"mb_per_s": first, "cached": again, "to_files": again / files}


def _webdataset(url: str, shards: Path) -> dict[str, float]:
    import webdataset

    names = [f"{url}/{path.name}" for path in sorted(shards.glob("*.tar"))]
    data = webdataset.WebDataset(
        names, shardshuffle=100, empty_check=False, nodesplitter=None
    ).shuffle(1000)
    loader = webdataset.WebLoader(data, batch_size=None, num_workers=WORKERS)
    return {"mb_per_s": _rate(loader, lambda sample: len(sample["jpg"]))}


def _mosaicml(url: str, shards: Path) -> dict[str, float]:
    import rows.mosaicml  # noqa: F401 - makes the library importable
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()  # left by a killed process
    data = StreamingDataset(
        remote=url, local=f"{os.environ['XDG_CACHE_HOME']}/mds", shuffle=True, batch_size=BATCH
    )
    for stream in data.streams:  # forked workers would share the connection that read the index
        stream._downloader.clean_up()  # and wait a minute for data that another worker received
    loader = DataLoader(data, batch_size=BATCH, num_workers=WORKERS, collate_fn=list)
    return {"mb_per_s": _rate(loader, lambda batch: sum(len(each["image"]) for each in batch))}


def _litdata(url: str, shards: Path) -> dict[str, float]:
    import litdata

    data = litdata.StreamingDataset(
        url, cache_dir=f"{os.environ['XDG_CACHE_HOME']}/chunks", shuffle=True,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )  # fmt: skip
    loader = litdata.StreamingDataLoader(
        data, batch_size=BATCH, num_workers=WORKERS, collate_fn=_bytes
    )
    return {"mb_per_s": _rate(loader, lambda batch: sum(map(len, batch)))}


def _bytes(samples: list[Any]) -> list[bytes]:
    return [bytes(each) for each in samples]


def _plain(url: str, shards: Path) -> dict[str, float]:
    from torch.utils.data import DataLoader

    from penstock.datasets.storages.webdataset import WebDatasetStorage

    storage = WebDatasetStorage(str(shards))
    index = storage.index
    files = [f"{url}/{path.name}" for path in sorted(shards.glob("*.tar"))]
    columns = (index.column(name).tolist() for name in ("file", "offset", "span_bytes"))
    places = zip(*columns, strict=True)
    loader = DataLoader(
        _OneRequestEach([(files[shard], start, size) for shard, start, size in places]),
        batch_size=BATCH, shuffle=True, num_workers=WORKERS, collate_fn=list,
    )  # fmt: skip
    return {"mb_per_s": _rate(loader, lambda batch: sum(map(len, batch)))}


class _OneRequestEach:
    """A typical map-style dataset: each record is a request over a persistent connection."""

    def __init__(self, places: list[tuple[str, int, int]]) -> None:
        self._places = places
        self._connection: Any = None

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, row: int) -> bytes:
        import http.client
        from urllib.parse import urlsplit

        url, start, size = self._places[row]
        parts = urlsplit(url)
        if self._connection is None:
            self._connection = http.client.HTTPConnection(parts.netloc)
        wanted = {"Range": f"bytes={start}-{start + size - 1}"}
        self._connection.request("GET", parts.path, headers=wanted)
        content: bytes = self._connection.getresponse().read()
        return content


CELLS: dict[str, Callable[[str, Path], dict[str, float]]] = {
    OURS: _ours,
    SHUFFLED: lambda url, shards: _ours(url, shards, "sampler=shard_shuffle", "sampler.window=8"),
    UNCACHED: lambda url, shards: _ours(url, shards, "dataset/cache=none"),
    "webdataset library, shards in a row": _webdataset,
    "torch DataLoader, a request each": _plain,
}
PEERS: dict[str, tuple[str, Callable[[str, Path], dict[str, float]]]] = {
    "mosaicml-streaming, shuffled": ("mosaicml", _mosaicml),
    "litdata, shuffled": ("lit_data", _litdata),
}


def _rate(batches: Iterable[Any], size: Callable[[Any], int]) -> float:
    """Return MB per second up to the last batch, without the time that workers need to end."""
    start = end = time.perf_counter()
    total = 0
    for batch in batches:
        total += size(batch)
        end = time.perf_counter()
    return total / (end - start) / 1e6


def serve(spec: dict[str, Any]) -> None:
    """Print the address, then serve the shards until the input ends."""
    from tests.object_store import ObjectStore

    store = ObjectStore()
    store.latency_s, store.bytes_per_s = spec["latency_s"], spec["bytes_per_s"]
    store.put(Path(spec["shards"]), "shards")
    print(store.url, flush=True)
    sys.stdin.read()


def cell(spec: dict[str, Any]) -> None:
    """Measure one loader with its own server."""
    if "prepare" in spec:
        from rows import Work

        import_module(f"rows.{spec['prepare']}").prepare(Work(**spec["work"]), "")
        reply(None)
        return
    os.environ["XDG_CACHE_HOME"] = spec["cache"]
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", json.dumps(spec)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    os.environ.update(AWS_ENDPOINT_URL=address, AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY="s",
                      AWS_REGION="us-east-1", AWS_ALLOW_HTTP="true",
                      S3_ENDPOINT_URL=address)  # fmt: skip
    knows_s3 = spec["loader"] in (OURS, SHUFFLED, UNCACHED, *PEERS)
    url = "s3://bucket/shards" if knows_s3 else f"{address}/bucket/shards"
    cells = CELLS | {loader: measure for loader, (_, measure) in PEERS.items()}
    found = cells[spec["loader"]](url, Path(spec["shards"]))
    used = (getrusage(who).ru_maxrss for who in (RUSAGE_SELF, RUSAGE_CHILDREN))
    reply({**found, "peak_mb": max(used) * 1024 / 1e6})
    server.communicate("")  # its end


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT.parent)]
    if sys.argv[1] == "--cell":
        cell(json.loads(sys.argv[2]))
    elif sys.argv[1] == "--serve":
        serve(json.loads(sys.argv[2]))
    else:
        main()
