"""Tables whose rows are records: code that storages of tables share.

``storage=parquet``, ``storage=arrow`` and ``storage=csv`` are one file each, a `form` of `storage`.
`group` reads rows and columns of a group, `schema` finds the roles of columns, `writer` and
`record_columns` store records so that their fields round-trip.
"""
