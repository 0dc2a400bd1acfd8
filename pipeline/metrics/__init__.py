"""Metrics that torchmetrics has not, or not without more libraries."""
