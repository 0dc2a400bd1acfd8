"""The way to an accelerator: copies beside its computing, from page-locked memory."""
