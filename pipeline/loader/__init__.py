"""The batch plan, the engines that compute batches, and faults."""
