"""Registered models: light factories; the networks themselves are in `pipeline.networks`."""
