"""The contracts between the stages, in the order in which data flows.

================  ==========================================================================
`storage`         where records lie: `Index`, `Storage`, `MappedStorage`, `ColumnStorage`,
                  `GatheringStorage`, whose arrays a `Gather` takes rows of
`writer`          how packed data gets there: `Writer`
`annotations`     what label files add to records: `Annotations`, which is given
                  `RecordsToLabel` and gives `RecordAnnotations`
`source`          where a stream comes from: `Source`, `ShardReader`
`decoder`         record to sample: `Decoder`, `FittedDecoder`
`transform`       sample to sample: `Transform`, `PartnerTransform`; batch to batch:
                  `BatchTransform`, `RowTransform`
`dataset`         positions to samples: `Dataset`, and what one may be able to do besides:
                  `StagedDataset`, `PartnerDataset`, `ColumnDataset`; `StreamDataset`
`sampler`         position to record: `Sampler`
`collate`         samples to batch: `Collate`
`training`        what consumes batches: `Model`, `Task`, `PredictingTask`, `Logger`
================  ==========================================================================

Whatever crosses to another process pickles as its recipe (its arguments), opens its
handles on first use in the process that uses them, and is safe under fork, spawn and
forkserver. Import every name from here.
"""

from datasets.protocols.annotations import Annotations, RecordAnnotations, RecordsToLabel
from datasets.protocols.collate import Collate
from datasets.protocols.dataset import (
    ColumnDataset,
    Dataset,
    PartnerDataset,
    StagedDataset,
    StreamDataset,
)
from datasets.protocols.decoder import Decoder, FittedDecoder
from datasets.protocols.sampler import Sampler
from datasets.protocols.source import ShardReader, Source
from datasets.protocols.storage import (
    ColumnStorage,
    Gather,
    GatheringStorage,
    Index,
    MappedStorage,
    Storage,
)
from datasets.protocols.training import Logger, Model, PredictingTask, Task
from datasets.protocols.transform import (
    BatchTransform,
    PartnerTransform,
    RowTransform,
    Transform,
)
from datasets.protocols.writer import Writer

__all__ = [
    "Annotations",
    "BatchTransform",
    "Collate",
    "ColumnDataset",
    "ColumnStorage",
    "Dataset",
    "Decoder",
    "FittedDecoder",
    "Gather",
    "GatheringStorage",
    "Index",
    "Logger",
    "MappedStorage",
    "Model",
    "PartnerDataset",
    "PartnerTransform",
    "PredictingTask",
    "RecordAnnotations",
    "RecordsToLabel",
    "RowTransform",
    "Sampler",
    "ShardReader",
    "Source",
    "StagedDataset",
    "Storage",
    "StreamDataset",
    "Task",
    "Transform",
    "Writer",
]
