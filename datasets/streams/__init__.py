"""Data without random access, read in lanes, in order."""
