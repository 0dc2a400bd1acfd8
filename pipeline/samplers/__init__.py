"""Say which record stands at a position, one sampler per file."""
