"""How it runs: configuration, samplers, collates, the loader, training and the commands."""
