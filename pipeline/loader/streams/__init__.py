"""Batches of streams: which items each rank takes, and who reads them."""
