"""Read and write arrays in memory-mapped files."""

from penstock.datasets.storages.memmap.storage import MemmapStorage as MemmapStorage
from penstock.datasets.storages.memmap.writer import MemmapWriter as MemmapWriter
