"""Names of other tools: the wrong thing is typed, then what the message advises."""

from __future__ import annotations

import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from penstock.core import registry
from penstock.pipeline.config import hints
from penstock.pipeline.config.composition import compose
from penstock.pipeline.config.discovery import load_builtin
from penstock.pipeline.config.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BROUGHT = {
    "torch": """
        shuffle=true loader.shuffle=true sampler=WeightedRandomSampler batch_sampler=x generator=x
        loader.generator=x lr=0.1 trainer.lr=0.1 epochs=3 pin_memory=true persistent_workers=true
        prefetch_factor=4 drop_last=false num_workers=2 multiprocessing_context=spawn momentum=0.9
        optimizer=AdamW scheduler=OneCycleLR scheduler=LinearLR dataset=iterable iterable=true
        loss_fn=cross_entropy criterion=mse model.lr=0.1 --lr=0.1 --epochs=3
        --batch-size=8 --workers=2 --gpus=2 --resume=auto class_weights=balanced
        collate_fn=x device=0
    """,
    "Lightning": """
        max_epochs=3 max_steps=9 accumulate_grad_batches=2 gradient_clip_val=1.0 precision=16-mixed
        trainer.precision=bf16-mixed devices=2 num_nodes=2 strategy=ddp seed_everything=1
        trainer.accelerator=gpu limit_train_batches=9 overfit_batches=1 log_every_n_steps=9
        check_val_every_n_epoch=2 val_check_interval=0.5 enable_progress_bar=false ckpt_path=auto
        fast_dev_run=true default_root_dir=x save_top_k=1 enable_checkpointing=false patience=3
        deterministic=true trainer.callbacks=[ema] profiler=simple callback=EarlyStopping
        monitor=loss mode=min
    """,
    "Hugging Face": """
        per_device_train_batch_size=8 per_device_eval_batch_size=8 num_train_epochs=3 max_steps=9
        learning_rate=0.1 weight_decay=0.01 warmup_steps=100 warmup_ratio=0.1 bf16=true fp16=true
        gradient_accumulation_steps=2 max_grad_norm=1.0 optim=adamw_torch lr_scheduler_type=cosine
        scheduler=linear dataloader_num_workers=2 dataloader_pin_memory=true torch_compile=true
        dataloader_drop_last=true dataloader_persistent_workers=true dataloader_prefetch_factor=2
        save_steps=100 save_strategy=epoch save_total_limit=2 eval_steps=100 eval_strategy=epoch
        logging_steps=10 logging_dir=x output_dir=x report_to=tensorboard disable_tqdm=true
        resume_from_checkpoint=auto metric_for_best_model=accuracy greater_is_better=true
        load_best_model_at_end=true label_smoothing_factor=0.1 do_train=true do_eval=true
        use_cpu=true dataset=hf dataset=huggingface
    """,
    "timm": """
        opt=adamw sched=cosine warmup_epochs=3 min_lr=0.001 mixup=0.2 cutmix=1.0 smoothing=0.1
        reprob=0.25 hflip=0.5 color_jitter=0.4 aa=rand-m9 clip_grad=1.0 model_ema=true img_size=32
        model_ema_decay=0.999 amp=true input_size=32 crop_size=32 data_dir_val=x val_split=0.1
        log_interval=10 channels_last=true pin_mem=true num_classes=10 train_path=<folder>
        base_lr=0.1 validation_batch_size=8
    """,
    "ultralytics": """
        imgsz=32 batch=8 workers=2 lr0=0.1 lrf=0.01 optimizer=adamW cache=ram fliplr=0.5 erasing=0.4
        task=detect task=segment task=pose task=classify nc=80 resume=auto val=true half=true
        augment=randaugment dataset=coco dataset=yolo device=cpu project=x name=x
    """,
    "keras": """
        validation_split=0.1 batch_size=8 clipnorm=1.0 learning_rate=0.1 callbacks=early_stopping
        initial_learning_rate=0.1 verbose=1 shuffle_buffer=100 loss=mse
    """,
    "torchvision": """
        data_path=<folder> lr_warmup_epochs=3 random_erasing=0.1 auto_augment=ra label_smoothing=0.1
        mixup_alpha=0.2 print_freq=10 val_batch_size=8 dataset=ImageFolder dataset=voc
        model_ema_decay=0.9 sync_bn=true resolution=32 transform=RandomCrop
    """,
    "stores of data": """
        s3=x kafka=x dataset=s3 dataset=gcs dataset=kafka dataset=wds dataset=tar dataset=h5
        dataset=npy dataset=mds dataset=mosaicml dataset=streaming dataset=tfrecord dataset=zarr
        dataset=ffcv dataset=postgres shuffle_size=100 remote=x
    """,
}
# Of other data sets, with values of their own, or told by the place that they stand at.
APART = {
    "optimizer.param_groups",
    "dataset.url",
    "dataset.labels",
    "dataset.storage.labels",
    "data.path",
    "train.epochs",
    "loader.worker_init_fn",
    "dataset.decode.mask_colors",
}
OTHERWISE = ("torchrun --nproc-per-node=2 ", "docs/")  # what is advised besides overrides
BESIDE = {
    "transform": ["augment.train.my_step.height=16", "augment.train.my_step.width=16"],
    "dataset=sql": ["dataset.storage.url=sqlite:///x.db"],
    "dataset=stream": ["dataset.source.path=-", "trainer.max_epochs=1"],
}
SAMPLES = {"outputs": "x", "dataset": "zip", "optimizer": "adam", "scheduler": "cosine",
           "task": "segmentation", "augment": "strong", "model": "small_cnn", "logger": "csv",
           "trainer.amp": "bf16", "trainer.device": "cpu", "trainer.resume": "auto",
           "trainer.monitor": "loss", "trainer.monitor_mode": "min", "trainer.compile": "true",
           "dataset.val_fraction": "0.1", "dataset.storage.label_column": "x",
           "dataset.storage.path": "<folder>", "dataset.val_path": "<folder>",
           "scheduler.warmup": "0.1", "loader.pin_memory": "true", "loader.drop_last": "false",
           "loader.multiprocessing_context": "spawn", "task.label_smoothing": "0.1",
           "loader.persistent_workers": "true", "optimizer.layer_decay": "0.5",
           "task.class_weights": "balanced", "trainer.init_from": "<folder>",
           "trainer.freeze": "[stages]"}  # fmt: skip
ONE = r"(?:'[^']+'|~?[a-z_][\w./]*=[^\s,;]+)"
TYPED = re.compile(rf"\btype ({ONE}(?: {ONE})*)")


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Types wrong things, all at once, then what is advised for each; gives what went wrong."""
    load_builtin()
    monkeypatch.chdir(ROOT)  # the plug-ins lie there
    monkeypatch.setattr(registry, "_components", dict(registry._components))
    monkeypatch.setattr(sys, "path", [*sys.path])

    @cache
    def refused(advised: tuple[str, ...]) -> str:
        beside = [] if "my_step" not in advised[0] else BESIDE["transform"]
        beside += BESIDE.get(advised[0], []) if len(advised) == 1 else []
        try:
            compose([*advised, *beside])
        except ConfigError as error:
            return "; ".join(f"{problem.key}: {problem.message}" for problem in error.problems)
        return ""

    def try_out(typed: list[str]) -> list[str]:
        typed = [each.replace("<folder>", str(tmp_path)) for each in typed]
        with pytest.raises(ConfigError) as error:
            compose(typed)
        messages: dict[str, list[str]] = {}
        for problem in error.value.problems:
            messages.setdefault(problem.key, []).append(problem.message)
        wrong = []
        for each in typed:
            key = each if each.startswith("--") else each.partition("=")[0]
            if not messages.get(key):
                wrong.append(f"{each} is read")
                continue
            message = messages[key].pop(0)
            found = TYPED.search(message)
            if found is not None:
                advised = shlex.split(found[1].replace("<folder>", str(tmp_path)))
                said = refused(tuple(advised))
                wrong += [f"{each}: type {' '.join(advised)}: {said}"] if said else []
            elif not message.endswith(" away") and not any(each in message for each in OTHERWISE):
                wrong.append(f"{each}: nothing is advised: {message}")
        return wrong

    before = {*sys.modules}
    yield try_out
    for name in {*sys.modules} - before:
        if name.startswith("penstock_"):  # a plug-in, which registers where it is imported
            del sys.modules[name]


@pytest.mark.parametrize("tool", BROUGHT)
def test_what_is_advised_for_a_name_of_another_tool_composes(tool, tried):
    assert tried(BROUGHT[tool].split()) == []


def test_every_key_of_the_tables_advises_what_composes(tried):
    apart = ("pack.", "writer.", "hydra.", "callback.")  # of other commands: test_hints.py
    keys = [f"{key}={SAMPLES.get(target, '3')}" for key, target in hints.RENAMED.items()]
    keys += [f"{key}=3" for key in hints.INSTEAD if key not in ("transform", "model")]
    keys = [each for each in keys if each.partition("=")[0] not in APART]
    assert tried([each for each in keys if not each.startswith(apart)]) == []
