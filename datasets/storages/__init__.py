"""One backend per file: where records lie."""
