"""Decode a record's bytes to a sample's arrays."""
