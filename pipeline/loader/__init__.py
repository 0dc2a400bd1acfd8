"""The loader: batch plan, executors, and faults."""
