"""Arrays in memory-mapped files, read and written."""

from penstock.datasets.storages.memmap.storage import MemmapStorage as MemmapStorage
from penstock.datasets.storages.memmap.writer import MemmapWriter as MemmapWriter
