"""Hugging Face's Trainer: ``python hugging_face_trainer.py dataset=... seed=1``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.learning.building import build_model, build_optimizer, build_task
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.loader.device.queue import DeviceQueue

STATE = "loader.json"


class PenstockTrainer(Trainer):
    """Trains and evaluates on the batches of a config.

    The Trainer usually wraps the torch DataLoaders that it creates. It does not wrap our loaders,
    which already split each batch over the ranks. The Trainer sets their epoch. To resume, a loader
    loads its own state, saved in each checkpoint, and the Trainer skips no batches.

    Args:
        config: The config that `penstock.compose` returns.
        args: The Trainer's arguments, without settings of the data.
    """

    def __init__(self, config: Mapping[str, Any], args: TrainingArguments, **options: Any) -> None:
        self.config = config
        self.batches: dict[str, DeviceQueue] = {}
        args.ignore_data_skip = True
        loader = self._open("train", args)
        num_classes = len(loader.loader.class_names or ())
        self.task = build_task(config, num_classes, None)
        model = build_model(config, num_classes)
        optimizer = build_optimizer(config, model)
        super().__init__(model, args, optimizers=(optimizer, None), **options)

    def _open(self, split: Any, args: TrainingArguments) -> DeviceQueue:
        if split not in self.batches:
            device, rank, size = args.device, args.process_index, args.world_size
            loader = build_loader(self.config, split, rank=rank, world_size=size, device=device)
            transforms = build_device_transforms(self.config, split, device)
            self.batches[split] = DeviceQueue(loader, device, transforms)
        return self.batches[split]

    def get_train_dataloader(self) -> Any:
        """Return the batches to train on."""
        return self._open("train", self.args)

    def get_eval_dataloader(self, _dataset: Any = None) -> Any:
        """Return the batches to validate on: each record once over all ranks."""
        return self._open("val", self.args)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Compute the loss of a batch."""
        outputs = model(inputs)
        loss = total_loss(self.task, outputs, inputs)
        return (loss, outputs) if return_outputs else loss

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[torch.Tensor, None, None]:
        """Compute the loss of a validation batch."""
        with torch.no_grad():
            return total_loss(self.task, model(inputs), inputs).detach(), None, None

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train, or resume from a checkpoint with its model and data position."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            state = json.loads(Path(str(resume_from_checkpoint), STATE).read_text())
            self._open("train", self.args).load_state_dict(state)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
            folder.joinpath(STATE).write_text(json.dumps(self.batches["train"].state_dict()))


def main(overrides: list[str], *, resume: bool = False, **arguments: Any) -> PenstockTrainer:
    """Train by a config, with `arguments` for `TrainingArguments`."""
    config = compose(overrides)
    arguments.setdefault("num_train_epochs", config["trainer"]["max_epochs"])
    trainer = PenstockTrainer(config, TrainingArguments(**arguments))
    trainer.train(resume_from_checkpoint=resume or None)
    return trainer


if __name__ == "__main__":
    main(sys.argv[1:])
