"""A stream's bad records cost the same rows on any number of ranks, and no rank a batch."""

from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from torch.utils.data import IterableDataset

from penstock import build_loader, compose

GOOD = [number for number in range(24) if number not in (0, 8, 9, 10, 11, 21)]


class Numbers(IterableDataset):
    """Numbers of which some cannot be read."""

    def __iter__(self):
        for number in range(24):
            image = np.full((16, 16, 3), number, np.uint8)
            yield (image, number % 2) if number in GOOD else None


@pytest.fixture
def lines(tmp_path):
    """JSON lines of images; five are bad, one of them the first and four of them neighbours."""
    for number in range(24):
        image = np.full((16, 16, 3), number, np.uint8)
        cv2.imwrite(str(tmp_path / f"{number:02d}.png"), image)
        if number not in GOOD:
            (tmp_path / f"{number:02d}.png").write_bytes(b"no image")
    rows = [{"image": f"{number:02d}.png", "label": number % 2} for number in range(24)]
    (tmp_path / "lines.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return ["dataset=stream", "dataset/source=jsonl", f"dataset.source.path={tmp_path}/lines.jsonl",
            f"dataset.source.root={tmp_path}", "dataset.source.classes=2",
            "dataset.shuffle=false", "dataset.shuffle_window=0"]  # fmt: skip


FOREIGN = ["dataset=torch", f"dataset.target={__name__}.Numbers", "dataset.classes=2"]
COMMON = ["augment=none", "augment.image_size=16", "loader.batch_size=4",
          "loader.max_error_rate=0.5"]  # fmt: skip
INLINE = ["loader=inline"]


def batches_of(typed, split, world_size):
    """The number of batches of each rank, and all numbers of valid rows."""
    config = compose([*typed, *COMMON])
    counts: list[int] = []
    numbers: list[int] = []
    for rank in range(world_size):
        with build_loader(config, split, rank=rank, world_size=world_size) as loader:
            batches = [*loader]
        assert all(batch["image"].shape[1:] == (16, 16, 3) for batch in batches)
        counts.append(len(batches))
        for batch in batches:
            numbers += batch["image"][:, 0, 0, 0][batch["valid"]].tolist()
    return counts, sorted(numbers)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_training_skips_the_same_records(lines, world_size):
    typed = [*lines, *INLINE, "dataset.val_fraction=0", "loader.on_error=skip"]
    assert batches_of(typed, "train", world_size) == ([6] * world_size, GOOD)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_validation_skips_the_same_records(lines, world_size):
    typed = [*lines, *INLINE, "dataset.val_fraction=1"]
    assert batches_of(typed, "val", world_size) == ([6] * world_size, GOOD)


@pytest.mark.parametrize("workers", [INLINE, ["loader=threads", "loader.num_workers=2"]])
def test_items_of_an_iterable_dataset_are_skipped_alike(workers):
    typed = [*FOREIGN, *workers, "dataset.val_fraction=0", "loader.on_error=skip"]
    assert batches_of(typed, "train", 4) == ([6] * 4, GOOD)


def test_processes_skip_the_same_records(lines):
    typed = [*lines, "loader=processes", "loader.num_workers=1", "dataset.val_fraction=0",
             "loader.on_error=skip"]  # fmt: skip
    assert batches_of(typed, "train", 4)[1] == GOOD


def test_a_resumed_rank_fills_its_batches_too(lines):
    config = compose([*lines, *INLINE, *COMMON, "dataset.val_fraction=0", "loader.on_error=skip"])
    with build_loader(config, "train", rank=0, world_size=4) as loader:
        first = [batch["image"][:, 0, 0, 0].tolist() for batch in loader]
    with build_loader(config, "train", rank=0, world_size=4) as loader:
        state = {**loader.state_dict(), "next_batch": 1}
        loader.load_state_dict(state)
        assert [batch["image"][:, 0, 0, 0].tolist() for batch in loader] == first[1:]
