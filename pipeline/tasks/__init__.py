"""Tasks: from outputs and batch to losses and metrics."""
