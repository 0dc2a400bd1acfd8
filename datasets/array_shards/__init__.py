"""Read arrays in many files: ``shards`` groups the files, ``storage`` reads records and batches."""
