"""Learning-rate schedules of our own; those of torch are named by their path."""
