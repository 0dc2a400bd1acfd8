"""Arrays in many files: what ``storage=npy_shards`` and ``storage=pt_shards`` share.

With ``rows=true`` a file holds some samples along its first axis: ``shards`` says which file is
which field and gives rows, ``storage`` makes records and batches of them. With ``rows=false`` a
file is one sample: ``samples``. ``writer`` writes a shard for each part. The options themselves
(how a `.npy`, `.npz` or `.pt` file is opened and written) are files of ``datasets/storages``.
"""
