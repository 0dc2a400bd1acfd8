"""Samplers: the record index at each position of an epoch."""
