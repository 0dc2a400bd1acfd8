"""Libraries that take long to import, and that only what needs them imports."""

HEAVY = tuple(
    "torch albumentations cv2 pyarrow lmdb PIL simplejpeg torchmetrics rich matplotlib h5py".split()
)
