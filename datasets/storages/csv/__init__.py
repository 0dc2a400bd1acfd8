"""CSV files: `CsvStorage`, and the reader of their columns."""

from penstock.datasets.storages.csv.storage import CsvStorage as CsvStorage
