"""How a sample or a batch changes: decoding, augmentation, device transforms."""
