"""Imports every leaf of this project: a fork server does it, so that its workers need not."""

from __future__ import annotations

from penstock.pipeline.config.components import load_builtin

load_builtin()
