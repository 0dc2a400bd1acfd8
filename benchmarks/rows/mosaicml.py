"""mosaicml-streaming: MDS shards, its StreamingDataset in torch's DataLoader."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rows import Work
from rows.photo import load, one_thread_each

_declared: list[Any] = []


def _declare_operators_of_torchvision() -> None:
    """Let a torchvision import that was built for another torch.

    The library imports torchvision for data sets that are not used here, and torchvision's
    wheel does not import beside a CPU build of torch: its operators are missing.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import torch

        spec = importlib.util.find_spec("torchvision")
        assert spec is not None and spec.origin is not None
        text = "".join(path.read_text() for path in Path(spec.origin).parent.rglob("*.py"))
        library = torch.library.Library("torchvision", "DEF")
        for name in sorted(set(re.findall(r"torchvision::(\w+)", text))):
            library.define(f"{name}(Tensor x) -> Tensor")
        _declared.append(library)
    except ImportError:
        return


_declare_operators_of_torchvision()

LIBRARIES = ("streaming", "torch", "cv2")
DISTRIBUTIONS = ("mosaicml-streaming",)


def prepare(work: Work, option: str) -> None:
    """Shards of encoded images."""
    from streaming import MDSWriter

    with MDSWriter(out=work.prepared, columns={"image": "bytes"}) as writer:
        for path in work.files:
            writer.write({"image": Path(path).read_bytes()})


def open_batches(work: Work, option: str) -> Callable[[], Iterator[Any]]:
    """Local shards, shuffled by the library's default algorithm."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Photographs(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            return load(super().__getitem__(index)["image"], work.decoder, work.size)

    loader: Any = DataLoader(
        Photographs(local=work.prepared, shuffle=True, batch_size=work.batch_size),
        batch_size=work.batch_size, num_workers=work.workers, drop_last=True,
        persistent_workers=True, worker_init_fn=one_thread_each,
    )  # fmt: skip
    return lambda: iter(loader)
