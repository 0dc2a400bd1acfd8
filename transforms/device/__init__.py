"""Transforms of a whole batch where the batch is."""
