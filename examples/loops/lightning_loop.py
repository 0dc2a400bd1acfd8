"""PyTorch Lightning: ``python lightning_loop.py dataset=... seed=1``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import lightning
import torch

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.learning.building import build_model, build_optimizer, build_task
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.loader.device.queue import DeviceQueue


class PenstockData(lightning.LightningDataModule):
    """Batches of a config on the device of each rank: its slice of each batch.

    The state of this module is the loader's state. Lightning also saves loader states, but restores
    them only if it considers the epoch unfinished. It does not after an earlier resume from an
    epoch's last step.

    Args:
        config: The config that `penstock.compose` returns.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config

    def setup(self, stage: str) -> None:
        """Open the training loader before `configure_model`, which needs its class names."""
        self.train = self._open("train")

    def _open(self, split: Any) -> DeviceQueue:
        assert self.trainer is not None
        device, rank = self.trainer.strategy.root_device, self.trainer.global_rank
        size = self.trainer.world_size
        loader = build_loader(self.config, split, rank=rank, world_size=size, device=device)
        return DeviceQueue(loader, device, build_device_transforms(self.config, split, device))

    def train_dataloader(self) -> Any:
        """Return the batches to train on."""
        return self.train

    def val_dataloader(self) -> Any:
        """Return the batches to validate on: each record once over all ranks."""
        return self._open("val")

    def state_dict(self) -> dict[str, Any]:
        """Return the position of training in the data."""
        return self.train.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved position."""
        self.train.load_state_dict(state)


class PenstockModule(lightning.LightningModule):
    """The model, losses and optimizer of a config.

    Args:
        config: The config that `penstock.compose` returns.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.model: Any = None

    def configure_model(self) -> None:
        """Build the model and its task, once."""
        if self.model is None:
            num_classes = len(self.trainer.datamodule.train.loader.class_names or ())
            self.model = build_model(self.config, num_classes)
            self.task = build_task(self.config, num_classes, None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimizer."""
        return build_optimizer(self.config, self.model)

    def on_train_start(self) -> None:
        """Set the loader to Lightning's epoch: the epoch of its state, or the next.

        After a resume from an epoch's last step, Lightning begins the next epoch without a call of
        `on_train_epoch_start`.
        """
        self._set_epoch()

    def on_train_epoch_start(self) -> None:
        """Set the loader to Lightning's next epoch."""
        self._set_epoch()

    def _set_epoch(self) -> None:
        self.trainer.datamodule.train.set_epoch(self.current_epoch)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Compute the loss of a batch."""
        return total_loss(self.task, self.model(batch), batch)

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Log the loss of a validation batch."""
        loss = total_loss(self.task, self.model(batch), batch)
        self.log("val/loss", loss, batch_size=batch["num_valid"], sync_dist=True)


def main(
    overrides: list[str], *, checkpoint: str | None = None, **arguments: Any
) -> lightning.Trainer:
    """Train by a config, and resume from the checkpoint if given.

    Args:
        overrides: Overrides, as on the command line.
        checkpoint: A checkpoint file of Lightning, or ``last``.
        arguments: Arguments of `lightning.Trainer`.
    """
    config = compose(overrides)
    arguments.setdefault("max_epochs", config["trainer"]["max_epochs"])
    trainer = lightning.Trainer(**arguments)
    trainer.fit(PenstockModule(config), datamodule=PenstockData(config), ckpt_path=checkpoint)
    return trainer


if __name__ == "__main__":
    main(sys.argv[1:])
