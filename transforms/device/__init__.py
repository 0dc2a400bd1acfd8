"""Transform a whole batch where the batch is."""
