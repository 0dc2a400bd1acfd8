"""The torch modules behind the registered models."""
