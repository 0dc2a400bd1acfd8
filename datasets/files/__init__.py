"""Get bytes: find files, read them in places or as streams, never more open than may be."""
