"""What records of every storage have: an index, labels, splits."""
