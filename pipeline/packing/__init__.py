"""Packing: a storage's records written in another form, in parallel, and gone on with."""
