"""The ring engine from inside: threads, worker processes, slots of shared memory, and faults."""
