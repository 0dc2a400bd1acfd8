"""Describe the records of a storage: index, labels, splits."""
