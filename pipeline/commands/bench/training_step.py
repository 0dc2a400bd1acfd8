"""One training step as the trainer makes it, on batches that are on the device."""

from __future__ import annotations

from typing import Any

import torch

from pipeline.build import build_settings
from pipeline.build_training import build_model, build_optimizer, build_task
from pipeline.config.task_fields import task_field
from pipeline.training.loop import precision_of
from pipeline.training.losses import total_loss

_MADE_UP_CLASSES = 10


class TrainingStep:
    """Forward, backward and update of a model that is made for this and thrown away.

    Args:
        config: The plain config.
        loader: Knows the classes.
        batch: A batch of it; without a ``label``, made-up ones are taken, which cost the same.
        device: Where it computes.

    Attributes:
        made_up: Whether labels are made up.
    """

    def __init__(self, config: Any, loader: Any, batch: Any, device: torch.device) -> None:
        settings = build_settings(config["trainer"])
        class_names = loader.classes_of(task_field(config))
        self.made_up = not class_names and task_field(config) == "label"
        self._no_label = "label" not in batch
        if class_names is None and not self._no_label:
            num_classes = int(batch["label"].max()) + 1
        else:
            made_up = _MADE_UP_CLASSES if task_field(config) == "label" else 0
            num_classes = len(class_names or ()) or made_up
        known = {"table": loader.table, "classes_of": loader.classes_of}
        layout = torch.channels_last if settings.channels_last else torch.preserve_format
        model = build_model(config, num_classes, **known)
        self._model = model.to(device=device, memory_format=layout).train()  # type: ignore[call-overload]
        self._optimizer = build_optimizer(config, self._model.parameters())
        self._task = build_task(config, num_classes, class_names, **known)
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.amp == "fp16")
        self._precision = precision_of(settings, device)
        self._device = device

    def __call__(self, batch: Any) -> None:
        """Train on one batch, and wait for the device to be done."""
        if self._no_label:
            rows = len(batch["valid"])
            batch = {**batch, "label": torch.zeros(rows, dtype=torch.int64, device=self._device)}
        with self._precision():
            loss = total_loss(self._task, self._model(batch), batch)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
