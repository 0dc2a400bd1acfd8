"""Watching a running program: its memory."""
