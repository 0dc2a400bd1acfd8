"""Change a sample or a batch: decoding, augmentation, transforms on the device."""
