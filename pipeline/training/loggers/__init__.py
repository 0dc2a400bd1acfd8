"""Log the figures of a run, one form per file."""
