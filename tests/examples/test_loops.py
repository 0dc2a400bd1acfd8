"""Loops of other libraries are given what `train.py` trains on, and go on where they stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import build_loader, compose
from penstock.pipeline.build import build_device_transforms
from penstock.pipeline.device import DevicePrefetcher
from penstock.pipeline.loader.digest import batch_digest
from tests.laws.conftest import make_photos

pytestmark = [pytest.mark.ecosystem, pytest.mark.filterwarnings("ignore")]
EPOCHS, ROOT = 3, Path(__file__).resolve().parents[2]


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


@pytest.fixture
def expected(typed):
    """Digests of the batches of every epoch, as `train.py` gets them on the CPU."""
    config = compose(typed)
    loader = build_loader(config, "train", device="cpu")
    batches = DevicePrefetcher(loader, "cpu", build_device_transforms(config, "train", "cpu"))
    found = [[batch_digest(batch) for batch in batches] for _ in range(EPOCHS)]
    assert len(found[0]) == 5 and found[0] != found[1]
    return found


def flat(expected, start=0, stop=None):
    return [digest for epoch in expected for digest in epoch][start:stop]


def test_accelerate(imported, typed, expected, tmp_path):
    pytest.importorskip("accelerate")
    main, seen = imported("loops/accelerate_loop.py").main, []

    def watch(epoch, batch):
        seen.append(batch_digest(batch))

    for steps in (2, len(expected[0]), len(expected[0]) + 2):
        seen.clear()
        checkpoint = tmp_path / str(steps)
        main(typed, steps=steps, seen=watch, checkpoint=checkpoint)
        main(typed, seen=watch, checkpoint=checkpoint)
        assert seen == flat(expected), f"broken off after {steps}"


def test_hugging_face_trainer(imported, typed, expected, monkeypatch):
    # The folder `datasets` of the checkout would be taken for their package.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != ROOT])
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr("transformers.utils.import_utils._datasets_available", False)
    module, seen = imported("loops/hugging_face_trainer.py"), []
    compute = module.PenstockTrainer.compute_loss

    def watch(self, model, inputs, *args, **options):
        if model.training:
            seen.append(batch_digest(inputs))
        return compute(self, model, inputs, *args, **options)

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_save = control.should_training_stop = state.global_step == steps

    monkeypatch.setattr(module.PenstockTrainer, "compute_loss", watch)
    quiet = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "epoch"}
    for steps in (2, len(expected[0]), len(expected[0]) + 2):
        seen.clear()
        arguments = {**quiet, "output_dir": str(steps)}
        config = compose(typed)
        training = transformers.TrainingArguments(num_train_epochs=EPOCHS, **arguments)
        module.PenstockTrainer(config, training, callbacks=[Stop()]).train()
        assert seen == flat(expected, 0, steps)
        trainer = module.main(typed, resume=True, **arguments)
        assert seen == flat(expected), f"resumed after {steps}"
    assert trainer.evaluate()["eval_loss"] > 0
