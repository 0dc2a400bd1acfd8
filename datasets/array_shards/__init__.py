"""Arrays in many files: the storage and the writer of `memmap`, `npy_shards` and `pt_shards`.

With ``rows=true`` a file holds some samples along its first axis: ``shards`` finds which file is
which field, ``storage`` reads records and batches of them. With ``rows=false`` a file is one
sample. ``writer`` writes a shard for each part. The formats are the `ArrayForm` of
``datasets/storages``.
"""
