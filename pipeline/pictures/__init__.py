"""Draw samples, batches and figures, for the preview, for loggers and for notebooks."""
