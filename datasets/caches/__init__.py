"""Caches: storages that wrap another storage."""
