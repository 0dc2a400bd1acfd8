"""How it runs: configuration, samplers, collates, the loader and training."""
