"""Callbacks: what takes part in training, a file each."""
