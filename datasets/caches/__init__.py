"""Caches wrap a storage and stay a storage."""
