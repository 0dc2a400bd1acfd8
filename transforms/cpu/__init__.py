"""Transform one sample on the CPU."""
