"""Build what models and tasks are made of: networks, losses, metrics, readers of outputs."""
