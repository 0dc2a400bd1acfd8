"""Collates: samples to a batch of tensors."""
