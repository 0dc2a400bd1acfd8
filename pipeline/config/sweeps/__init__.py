"""Sweeps: a job for every combination of values, or for those that a search proposes."""
