"""Tar shards of samples, as the webdataset library has them: by random access, packed, streamed."""

from penstock.datasets.storages.webdataset.source import WebDatasetSource
from penstock.datasets.storages.webdataset.storage import WebDatasetStorage
from penstock.datasets.storages.webdataset.writer import WebDatasetWriter

__all__ = ["WebDatasetSource", "WebDatasetStorage", "WebDatasetWriter"]
