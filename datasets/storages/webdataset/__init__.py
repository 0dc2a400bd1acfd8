"""Tar shards in the format of the webdataset library: random access, packing, streaming."""

from penstock.datasets.storages.webdataset.source import WebDatasetSource
from penstock.datasets.storages.webdataset.storage import WebDatasetStorage, WebDatasetWriter

__all__ = ["WebDatasetSource", "WebDatasetStorage", "WebDatasetWriter"]
