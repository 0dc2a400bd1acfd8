"""Tables whose rows are records: what the storages of tables share, each using the parts it needs.

``storage=parquet`` and ``storage=arrow`` (with their writers) are a file format each and nothing
else: index, reading by row groups, whole columns and writing are ``storage``, ``groups``,
``values``, ``roles`` (columns by schema) and ``writer``. ``storage=csv`` and ``storage=sql``
choose the image, the label and the key by ``names``; the writers of Parquet and Arrow
store fields as ``record_columns`` says, so that packed records come back as they were.
"""
