"""A training job on made-up batches, small enough to be killed often; also a script."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from penstock.pipeline.loader.stats import LoaderStats  # noqa: E402
from penstock.pipeline.program import exit_with  # noqa: E402
from penstock.pipeline.tasks.classification import Classification  # noqa: E402
from penstock.pipeline.training import job, parts  # noqa: E402
from penstock.pipeline.training.callbacks import early_stopping, ema, profile  # noqa: E402, F401
from penstock.pipeline.training.loggers.csv import CsvLogger  # noqa: E402
from penstock.pipeline.training.settings import TrainerSettings  # noqa: E402

CLASSES = ("a", "b", "c")
DEFAULTS: dict[str, Any] = {
    "seed": 3,
    "outputs": "outputs",
    "dataset": {"_target_": "dataset/tiny"},
    "trainer": {
        "max_epochs": 3,
        "device": "cpu",
        "checkpoint_every": 2,
        "log_every": 3,
        "num_threads": 1,
        "progress": "lines",
        "timeout_s": 120,
        "resume": None,
    },
    "loader": {"batch_size": 8, "num_workers": 0},
    "logger": {"csv": {"_target_": "logger/csv"}},
    "callback": {},
    "tiny": {
        "samples": 45,
        "val_samples": 20,
        "drop_last": False,
        "bad_positions": [],
        "sleep_s": 0.0,
        "dropout": 0.2,
        "momentum": 0.9,
        "lr": 0.1,
        "fails": {},
    },
}


class TinyLoader:
    """Batches whose rows are functions of (seed, epoch, position), cut like the batch plan."""

    class_names = CLASSES
    dataset = None
    table = None

    def classes_of(self, field: str) -> tuple[str, ...] | None:
        """Names of the classes by label."""
        return CLASSES if field == "label" else None

    def __init__(self, config: Mapping[str, Any], split: str, rank: int, world_size: int) -> None:
        tiny = config["tiny"]
        self.training = split == "train"
        self.samples = tiny["samples" if self.training else "val_samples"]
        self.batch_size = config["loader"]["batch_size"]
        self.rank, self.world_size = rank, world_size
        self.bad = set(tiny["bad_positions"]) if self.training else set()
        self.sleep_s = tiny["sleep_s"]
        self.fails = tiny["fails"] if self.training else {}
        self.drops = tiny["drop_last"] and self.training
        self.epoch, self.next_batch, self.placed, self.finished = 0, 0, False, False
        self.stats = LoaderStats()
        self.dataset = None
        self.closed = False

    def start(self) -> None:
        """There are no workers to start."""

    def __len__(self) -> int:
        full = self.samples // self.batch_size
        return full if self.drops else -(-self.samples // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        if not self.training:
            epoch = 0
        if epoch != self.epoch or not self.placed:
            self.epoch, self.next_batch = epoch, 0
        self.placed, self.finished = True, False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.finished:
            self.epoch, self.next_batch = self.epoch + self.training, 0
        elif not self.placed:
            self.next_batch = 0
        self.placed = self.finished = False
        for number in range(self.next_batch, len(self)):
            time.sleep(self.sleep_s)
            if self.fails.get(str(self.rank)) == number:
                raise ValueError(f"made-up trouble on rank {self.rank}")
            self.next_batch = number + 1
            yield self.batch(number)
        self.finished = True

    def batch(self, number: int) -> dict[str, Any]:
        start = number * self.batch_size
        n = min(self.batch_size, self.samples - start)
        low = start + self.rank * n // self.world_size
        high = start + (self.rank + 1) * n // self.world_size
        positions = [p for p in range(low, high) if p not in self.bad]
        self.stats.bad_samples += high - low - len(positions)
        valid = [True] * len(positions)
        if not positions:
            positions, valid = [start], [False]
        rows = [self.row(p) for p in positions]
        return {
            "image": torch.stack([image for image, _ in rows]),
            "label": torch.tensor([label for _, label in rows]),
            "position": torch.tensor(positions),
            "valid": torch.tensor(valid),
            "key": [str(p) for p in positions],
        }

    def row(self, position: int) -> tuple[torch.Tensor, int]:
        draw = torch.Generator().manual_seed(position + 1000 * self.epoch + 10**6 * self.training)
        label = position % len(CLASSES)
        image = torch.randn(3, 6, 6, generator=draw) + torch.eye(3)[label][:, None, None]
        return image, label

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "next_batch": self.next_batch, "finished": self.finished}

    def load_state_dict(self, state: Mapping[str, Any], anyway: bool = False) -> None:
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]
        self.finished, self.placed = state["finished"], True

    def close(self) -> None:
        self.closed = True


class TinyNet(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, len(CLASSES))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        return self.head(self.dropout(self.body(batch["image"])))


def settings_of(config: Mapping[str, Any]) -> TrainerSettings:
    return TrainerSettings(**{k: v for k, v in config["trainer"].items() if k != "_target_"})


def _scheduler(
    config: Mapping[str, Any], optimizer: Any, total_steps: int | None, *, better: str
) -> Any:
    from penstock.pipeline.schedulers.cosine import cosine

    return cosine(optimizer=optimizer, total_steps=total_steps)


def _optimizer(config: Mapping[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    tiny = config["tiny"]
    return torch.optim.SGD(model.parameters(), lr=tiny["lr"], momentum=tiny["momentum"])


def _loader(
    config: Any, split: str, *, rank: int, world_size: int, run_dir: Path, device: Any, limit: Any
) -> TinyLoader:
    return TinyLoader(config, split, rank, world_size)


FAKES = {
    "build_settings": lambda node: settings_of({"trainer": node}),
    "build_loader": _loader,
    "build_device_transforms": lambda config, split, device: [],
    "build_model": lambda config, num_classes, **known: TinyNet(config["tiny"]["dropout"]),
    "build_task": lambda config, num_classes, names, **known: Classification(
        num_classes=num_classes
    ),
    "task_field": lambda config: "label",
    "task_classes": lambda config, classes_of: {"label": CLASSES},
    "build_optimizer": _optimizer,
    "build_scheduler": _scheduler,
    "build_loggers": lambda config, run_dir: [CsvLogger(run_dir=run_dir)],
}


def config_of(outputs: Path, trainer: Any = (), **tiny: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(DEFAULTS))
    config["outputs"] = str(outputs)
    config["trainer"] |= dict(trainer)
    config["tiny"] |= tiny
    return config


def main() -> int:
    for name, fake in FAKES.items():
        setattr(job if hasattr(job, name) else parts, name, fake)
    given = json.loads(sys.argv[1])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        for config in given if isinstance(given, list) else [given]:
            print(json.dumps(job.train(config)))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    exit_with(main)
