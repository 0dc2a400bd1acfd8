"""Watching a running program: memory and traces."""
