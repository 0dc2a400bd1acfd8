"""The config room rebuilt on public Hydra; it stands beside `config` until the commands use it."""
