"""Collates: samples to a batch, one way per file."""
