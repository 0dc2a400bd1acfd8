"""Models of torchvision: classifiers, segmenters and detectors."""

from __future__ import annotations

from penstock.pipeline.models.torchvision import model as model
