"""What people say about records: labels from folders, names and tables."""
