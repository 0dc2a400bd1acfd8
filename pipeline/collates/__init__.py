"""Collate samples into a batch of tensors, one way per file."""
