"""Read and write arrays in many files, for `memmap`, `npy_shards` and `pt_shards`.

With ``rows=true`` a file contains samples along its first axis: ``shards`` maps files to fields,
``storage`` reads records and batches. With ``rows=false`` a file is one sample. ``writer`` writes
a shard per part. The formats are the `ArrayForm` classes of ``datasets/storages``.
"""
