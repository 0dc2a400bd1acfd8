"""The way to the device: page-locked memory, a ring of buffers, and the queue that feeds it."""
