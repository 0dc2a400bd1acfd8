"""Configuration, samplers, collates, the loader, training and the commands."""
