"""Schedule the learning rate; the schedules of torch are named by their path."""
