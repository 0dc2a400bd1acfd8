"""HDF5: files of arrays."""

from penstock.datasets.storages.hdf5.storage import Hdf5Storage as Hdf5Storage
from penstock.datasets.storages.hdf5.writer import Hdf5Writer as Hdf5Writer
