"""A rank of a loop of another library: what its launcher starts in tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS, CHECKPOINT = 7, Path("checkpoint")


def watched(module: ModuleType) -> list[str]:
    """Digests of the batches that a loop trains on from now on."""
    from penstock.pipeline.commands.digest import batch_digest

    compute, seen = module.total_loss, []

    def total_loss(task: Any, outputs: Any, batch: Any) -> Any:
        if outputs.requires_grad:
            seen.append(batch_digest(batch))
        return compute(task, outputs, batch)

    module.total_loss = total_loss
    return seen


def main(library: str, *overrides: str) -> None:
    """Train for some steps, then from the checkpoint to the end; write what this rank got."""
    sys.path.insert(0, str(ROOT / "examples/loops"))
    module = __import__(f"{library}_loop")
    seen = watched(module)
    if library == "accelerate":
        module.main([*overrides], checkpoint=CHECKPOINT, steps=STEPS)
        assert len(seen) == STEPS
        module.main([*overrides], checkpoint=CHECKPOINT)
    else:
        from lightning.pytorch.callbacks import ModelCheckpoint

        def train(steps: int, checkpoint: str | None = None) -> None:
            keep = ModelCheckpoint(CHECKPOINT, every_n_train_steps=1, save_last=True)
            quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
            where = {"accelerator": "cpu", "devices": 2, "callbacks": [keep]}
            module.main([*overrides], checkpoint=checkpoint, max_steps=steps, **where, **quiet)

        train(STEPS)
        assert len(seen) == STEPS
        train(-1, str(CHECKPOINT / "last.ckpt"))
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
