"""Who computes batches, one engine per file."""
