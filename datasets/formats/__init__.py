"""Layouts of files: how records lie in them, without being a storage."""
