"""Registered models: light factories of the networks in `pipeline.learning.networks`."""

from __future__ import annotations
