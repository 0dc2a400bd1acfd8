"""Transforms of one sample on the CPU."""
