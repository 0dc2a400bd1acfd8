"""Loops of other libraries are given what `train.py` trains on, and go on where they stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.commands.digest import batch_digest
from penstock.pipeline.loader.device.queue import DeviceQueue
from tests.examples.ranks_of_loops import watched
from tests.laws.conftest import make_photos

pytestmark = [pytest.mark.ecosystem, pytest.mark.filterwarnings("ignore")]
EPOCHS, STEPS, ROOT = 3, 5, Path(__file__).resolve().parents[2]


@pytest.fixture
def typed(tmp_path, monkeypatch):
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos")
    yield [
        f"dataset.storage.path={tmp_path / 'photos'}", "dataset=image_folder", "loader=inline",
        "loader.batch_size=8", "augment.image_size=16", f"trainer.max_epochs={EPOCHS}",
    ]  # fmt: skip
    torch.set_num_threads(threads)


def expected(typed, **rank):
    """Digests of the batches of all epochs, as `train.py` gets them on the CPU."""
    config = compose(typed)
    loader = build_loader(config, "train", device="cpu", **rank)
    batches = DeviceQueue(loader, "cpu", build_device_transforms(config, "train", "cpu"))
    found = [batch_digest(batch) for _ in range(EPOCHS) for batch in batches]
    assert len({*found}) == STEPS * EPOCHS
    return found


def test_accelerate(imported, typed, tmp_path):
    pytest.importorskip("accelerate")
    module = imported("loops/accelerate_loop.py")
    seen = watched(module)
    for steps in (2, STEPS, STEPS + 2):
        seen.clear()
        checkpoint = tmp_path / str(steps)
        module.main(typed, steps=steps, checkpoint=checkpoint)
        assert len(seen) == steps
        module.main(typed, checkpoint=checkpoint)
        assert seen == expected(typed), f"broken off after {steps}"


def test_hugging_face_trainer(imported, typed, monkeypatch):
    # The folder `datasets` of the checkout would be taken for their package.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != ROOT])
    transformers = pytest.importorskip("transformers")
    module = imported("loops/hugging_face_trainer.py")
    seen = watched(module)

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_save = control.should_training_stop = state.global_step == steps

    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "epoch"}
    for steps in (2, STEPS, STEPS + 2):
        seen.clear()
        arguments = {**quiet, "output_dir": str(steps)}
        config = compose(typed)
        training = transformers.TrainingArguments(num_train_epochs=EPOCHS, **arguments)
        module.PenstockTrainer(config, training, callbacks=[Stop()]).train()
        assert len(seen) == steps
        trainer = module.main(typed, resume=True, **arguments)
        assert seen == expected(typed), f"resumed after {steps}"
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize(
    ("saving", "kills"),
    [
        ({"every_n_train_steps": 1}, (2, STEPS, STEPS + 2)),  # one run, killed three times
        ({"save_on_train_epoch_end": True}, (STEPS, 2 * STEPS)),
        ({"save_on_train_epoch_end": False}, (STEPS, 2 * STEPS)),  # behind validation
    ],
)
def test_lightning(imported, typed, saving, kills):
    lightning = pytest.importorskip("lightning")
    module = imported("loops/lightning_loop.py")
    seen = watched(module)

    class Killed(Exception): ...

    class Kill(lightning.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == kill:
                raise Killed
            assert len(seen) // STEPS == trainer.current_epoch

    def run():
        keep = lightning.pytorch.callbacks.ModelCheckpoint("checkpoints", save_last=True, **saving)
        last = "checkpoints/last.ckpt" if Path("checkpoints").exists() else None
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        module.main(typed, checkpoint=last, accelerator="cpu", callbacks=[keep, Kill()], **quiet)

    for kill in kills:
        with pytest.raises(Killed):
            run()
        assert len(seen) == kill
    kill = None
    run()
    assert seen == expected(typed)


# On the CPU its launcher starts one process, however many are asked for, but where there is MPI.
# Each on a port of its own, as several tests may run at a time.
LAUNCHED = {
    "accelerate": [
        "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0",
    ],
    "lightning": ["torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}  # fmt: skip


@pytest.mark.parametrize("library", LAUNCHED)
def test_each_of_two_ranks_gets_its_slices(library, typed):
    pytest.importorskip(library)
    script = Path(__file__).with_name("ranks_of_loops.py")
    command = [sys.executable, "-m", *LAUNCHED[library], str(script), library, *typed]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        seen = json.loads(Path(f"{rank}.json").read_text())
        assert seen == expected(typed, rank=rank, world_size=2)
