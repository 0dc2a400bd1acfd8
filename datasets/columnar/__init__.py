"""Tables whose rows are records: code that storages of tables share."""
