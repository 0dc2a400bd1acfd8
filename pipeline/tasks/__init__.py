"""Turn outputs and batch into losses and metrics, one task per file."""
