"""Sources of streams, one kind per file."""
