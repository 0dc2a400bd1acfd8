"""Train: job, loop, validation, checkpoints, run folder, ranks, loggers."""
