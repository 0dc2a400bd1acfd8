"""What packing writes: a form per file, named as the storage that reads it."""
