"""Caches: each wraps a storage, and is one."""
