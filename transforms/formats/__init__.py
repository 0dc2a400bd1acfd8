"""Image file formats: what a header says, and whether the file is whole."""
