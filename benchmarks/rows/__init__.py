"""The rows of the loaders' table, and the interface of their modules.

A row is a module of this package and an option of this module. The module defines

* ``LIBRARIES``, the modules to import, and ``DISTRIBUTIONS``, the packages whose versions to print;
* ``open_batches(work, option)``, which returns a function without arguments. Each call returns a
  newly shuffled epoch: an iterator of batches, uint8 [B, 224, 224, 3] (alone, first in a tuple or
  list, or as ``batch["image"]``). For a floor, a batch is the number of processed images;
* ``prepare(work, option)``, for rows that convert data once (into ``work.prepared``), by the
  library's own writer.

To add a row, add a line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Group = Literal["photographs", "prepared", "large"]
Kind = Literal["floor", "ours", "peer"]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table.

    Attributes:
        name: The name for ``--rows``, which also accepts a prefix.
        label: The text in the table.
        module: The module of this package.
        kind: A floor, ours, or a peer.
        option: The variant that the module should run.
        group: The group within which rows are compared.
        prepares: Name of the prepared data, if any; rows with equal names share it.
    """

    name: str
    label: str
    module: str
    kind: Kind
    option: str = ""
    group: Group = "photographs"
    prepares: str | None = None

    def matches(self, word: str) -> bool:
        """Return whether a word selects this row: a prefix of its name, or its group."""
        return self.name.startswith(word) or word == self.group


@dataclass(frozen=True, slots=True)
class Work:
    """The work that every row does.

    Attributes:
        photographs: A folder of JPEG files, at any depth, each name once.
        prepared: Path of the row's converted data, read by the row or written by `prepare`.
        batch_size: Images in a batch.
        size: Height and width of an image in a batch.
        workers: Number of worker threads or processes.
        decoder: Decoder for peers that leave decoding to the user: ``cv2`` or ``simplejpeg``.
    """

    photographs: str
    prepared: str
    batch_size: int
    size: int
    workers: int
    decoder: str

    @property
    def files(self) -> list[str]:
        """Return the paths of the photographs, sorted."""
        return sorted(str(path) for path in Path(self.photographs).rglob("*") if path.is_file())


ROWS = [
    Row("floor", "*floor:* pure decoding of whole images", "floor", "floor", "decode"),
    Row("ours-threads", "**ours**, files, threads", "ours", "ours", "threads"),
    Row("ours-processes", "**ours**, files, processes", "ours", "ours", "processes"),
    Row("ours-torch", "**ours**, files, engine=torch", "ours", "ours", "torch"),
    Row("ours-whole", "**ours**, files, decode.region=whole", "ours", "ours", "whole"),
    Row("ours-tiled", "**ours**, tiled JPEG", "ours", "ours", "tiled", prepares="tiled"),
    Row("ours-tiled-processes", "**ours**, tiled JPEG, processes", "ours", "ours",
        "tiled_processes", prepares="tiled"),
    Row("ours-tiled-whole", "**ours**, tiled JPEG, decode.region=whole", "ours", "ours",
        "tiled_whole", prepares="tiled"),
    Row("torch-pil", "torch DataLoader, PIL", "torch_loader", "peer", "pil"),
    Row("torch-albumentations", "torch DataLoader, cv2, albumentations", "torch_loader", "peer",
        "albumentations"),
    Row("torch-cv2", "torch DataLoader, cv2 alone", "torch_loader", "peer", "cv2"),
    Row("webdataset", "webdataset", "web_dataset", "peer", prepares="webdataset"),
    Row("litdata", "litdata", "lit_data", "peer", prepares="litdata"),
    Row("mosaicml", "mosaicml-streaming", "mosaicml", "peer", prepares="mosaicml"),
    Row("torchdata", "torchdata nodes", "torchdata_nodes", "peer"),
    Row("huggingface", "HF datasets", "huggingface", "peer", prepares="huggingface"),
    Row("dali", "NVIDIA DALI on the CPU (decodes regions)", "dali", "peer"),
    Row("spdl-image", "SPDL, a task per image", "spdl_pipeline", "peer", "image"),
    Row("spdl-batch", "SPDL, a task per batch", "spdl_pipeline", "peer", "batch"),
    Row("grain-image", "grain, threads, batched after reading", "grain_threads", "peer", "image"),
    Row("grain-batch", "grain, threads, a task per batch", "grain_threads", "peer", "batch"),
    Row("ffcv-jpeg", "FFCV, all images as JPEG (quality 95), not resized", "ffcv_loader", "peer",
        "jpeg", prepares="ffcv_jpeg"),
    Row("resize-floor", "*floor:* crop and resize of raw images (max side 500) into a batch",
        "floor", "floor", "resize", "prepared", "raw_floor"),
    Row("prepared-half-raw", "**ours**, FFCV's preparation", "ours", "ours", "half_raw",
        "prepared", "half_raw"),
    Row("prepared-half-raw-processes", "**ours**, FFCV's preparation, processes", "ours", "ours",
        "half_raw_processes", "prepared", "half_raw"),
    Row("prepared-half-raw-tiled", "**ours**, FFCV's preparation, its JPEG tiled", "ours", "ours",
        "half_raw_tiled", "prepared", "half_raw_tiled"),
    Row("prepared-raw", "**ours**, max side 500, all raw", "ours", "ours", "raw", "prepared",
        "raw"),
    Row("prepared-raw-processes", "**ours**, max side 500, all raw, processes", "ours", "ours",
        "raw_processes", "prepared", "raw"),
    Row("prepared-256", "**ours**, JPEG of short side 256, quality 90", "ours", "ours",
        "short_256", "prepared", "short_256"),
    Row("prepared-256-raw", "**ours**, short side 256, all raw", "ours", "ours", "short_256_raw",
        "prepared", "short_256_raw"),
    Row("ffcv-prepared", "FFCV, its preparation (max side 500, half raw, quality 90)",
        "ffcv_loader", "peer", "recommended", "prepared", "ffcv_recommended"),
    Row("large-floor", "*floor:* pure decoding of whole images", "floor", "floor", "decode",
        "large"),
    Row("large-whole", "**ours**, decode.region=whole", "ours", "ours", "whole", "large"),
    Row("large-exact", "**ours**, files as they are", "ours", "ours", "threads", "large"),
    Row("large-tiled", "**ours**, tiled JPEG", "ours", "ours", "tiled", "large", "large_tiled"),
]  # fmt: skip
