"""Where the figures of a run go."""
