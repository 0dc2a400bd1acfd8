"""Classifiers of transformers: images, and tokens."""

from __future__ import annotations

from penstock.pipeline.models.transformers import model as model
