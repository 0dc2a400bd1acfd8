"""The training job: loop, checkpoints, run folder, distributed, loggers."""
