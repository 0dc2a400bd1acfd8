"""Collates: samples to a batch."""
