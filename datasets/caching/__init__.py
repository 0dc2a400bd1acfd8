"""What caches are made of: entries, places in memory and on disk, and the storage around them."""
