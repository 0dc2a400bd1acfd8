"""Common names of other tools, and what to type instead: at most 40, see `docs/moving.md`."""

TORCHRUN = "torchrun"

FOREIGN_NAMES: dict[str, str] = {
    # DataLoader, WebDataset and training scripts
    "shuffle": "sampler=random or sampler=sequential",
    "collate_fn": "collate=pad",
    "shardshuffle": "sampler=shard_shuffle",
    "epochs": "trainer.max_epochs",
    "learning_rate": "optimizer.lr",
    "root": "dataset.storage.path",
    "data_dir": "dataset.storage.path",
    "workers": "loader.num_workers",
    "batch": "loader.batch_size",
    "gpus": TORCHRUN,
    # Lightning
    "accelerator": "trainer.device",
    "devices": TORCHRUN,
    "precision": "trainer.amp=bf16 or trainer.amp=off",
    "gradient_clip_val": "trainer.clip_norm",
    "accumulate_grad_batches": "trainer.accumulate",
    "check_val_every_n_epoch": "trainer.validate_every",
    "val_check_interval": "trainer.validate_every=1",
    "mode": "trainer.monitor_mode",
    "ckpt_path": "trainer.resume",
    "default_root_dir": "outputs",
    "seed_everything": "seed",
    "fast_dev_run": "debug=one_batch",
    "enable_progress_bar": "trainer.progress=off or trainer.progress=bar",
    "patience": "callback=early_stopping callback.early_stopping.patience=5",
    # Hugging Face Trainer
    "gradient_accumulation_steps": "trainer.accumulate",
    "max_grad_norm": "trainer.clip_norm",
    "save_steps": "trainer.checkpoint_every",
    "eval_strategy": "trainer.validate_every=1",
    "output_dir": "outputs",
    "report_to": "logger",
    "bf16": "trainer.amp=bf16",
    "fp16": "trainer.amp=fp16",
    # timm, Ultralytics and MosaicML Composer
    "opt": "optimizer",
    "momentum": "optimizer=sgd optimizer.momentum=0.9",
    "clip_grad": "trainer.clip_norm",
    "model_ema": "callback=ema",
    "warmup_epochs": "scheduler.warmup=0.05",
    "lr0": "optimizer.lr",
    "imgsz": "augment.image_size",
    "max_duration": "trainer.max_epochs=10",
}
"""A key keeps the value that was given; other entries are typed as they stand.

A name also stands for longer names that end with it: `num_train_epochs` is `epochs`.
"""
