"""From YAML and overrides to one checked, plain config."""
