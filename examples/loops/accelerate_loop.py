"""A loop by accelerate: ``accelerate launch accelerate_loop.py dataset=... seed=1``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.learning.building import build_model, build_optimizer, build_task
from penstock.pipeline.learning.losses import total_loss
from penstock.pipeline.loader.device.queue import DeviceQueue


def open_batches(config: Mapping[str, Any], split: Any, accelerator: Accelerator) -> Any:
    """Open the batches of a split on this process's device: its slice of each batch.

    Do not pass them to ``accelerator.prepare``, which would split each batch again.
    """
    rank, world_size = accelerator.process_index, accelerator.num_processes
    device = accelerator.device
    loader = build_loader(config, split, rank=rank, world_size=world_size, device=device)
    return DeviceQueue(loader, device, build_device_transforms(config, split, device))


def main(
    overrides: list[str], *, checkpoint: Path = Path("checkpoint"), steps: int | None = None
) -> None:
    """Train by a config, and resume from the checkpoint if it exists.

    Args:
        overrides: Overrides, as on the command line.
        checkpoint: A folder, written after each epoch and after `steps` steps.
        steps: Number of steps after which to stop; None: at the end of the last epoch.
    """
    accelerator, config = Accelerator(), compose(overrides)
    batches = open_batches(config, "train", accelerator)
    model = build_model(config, len(batches.loader.class_names or ()))
    task = build_task(config, len(batches.loader.class_names or ()), None)
    model, optimizer = accelerator.prepare(model, build_optimizer(config, model))
    accelerator.register_for_checkpointing(batches)
    if checkpoint.is_dir():
        accelerator.load_state(str(checkpoint))
    step = 0
    for epoch in range(batches.loader.epoch, config["trainer"]["max_epochs"]):
        batches.set_epoch(epoch)
        for batch in batches:
            accelerator.backward(total_loss(task, model(batch), batch))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step == steps:
                accelerator.save_state(str(checkpoint))
                return
        accelerator.save_state(str(checkpoint))


if __name__ == "__main__":
    main(sys.argv[1:])
