"""What the data is: records, their storages, and datasets over them.

Another package of this name exists. Penstock runs from its checkout and never depends on it;
a name that only the other one has gets an error that says what happened.
"""

from typing import Any, NoReturn

_NAMES_OF_THE_OTHER_PACKAGE = frozenset(
    "load_dataset load_dataset_builder load_from_disk Dataset DatasetDict IterableDataset "
    "IterableDatasetDict Features Value ClassLabel Image Audio Sequence concatenate_datasets "
    "interleave_datasets get_dataset_config_names get_dataset_split_names DownloadConfig".split()
)


def __getattr__(name: str) -> Any:
    if name in _NAMES_OF_THE_OTHER_PACKAGE:
        _explain(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _explain(name: str) -> NoReturn:
    raise ImportError(
        f"cannot import {name!r}: this is Penstock's own package 'datasets' ({__file__}), not the "
        f"one of Hugging Face; run your code from another folder than Penstock's checkout, or "
        f"export the data (to Parquet or files) and open it with dataset=..."
    )
