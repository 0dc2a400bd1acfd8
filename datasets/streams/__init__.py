"""Data that cannot be indexed: read in lanes, in order."""
