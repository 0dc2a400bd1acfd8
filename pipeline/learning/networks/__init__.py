"""Build reference networks for each task, small enough to train on a laptop."""

from __future__ import annotations

from penstock.pipeline.learning.networks.classification import SmallCnn as SmallCnn
from penstock.pipeline.learning.networks.detection import BoxDetector as BoxDetector
from penstock.pipeline.learning.networks.detection import BoxHead as BoxHead
from penstock.pipeline.learning.networks.identity import Embedder as Embedder
from penstock.pipeline.learning.networks.inputs import FedModule as FedModule
from penstock.pipeline.learning.networks.inputs import image_of as image_of
from penstock.pipeline.learning.networks.inputs import refusing as refusing
from penstock.pipeline.learning.networks.inputs import taking_batches as taking_batches
from penstock.pipeline.learning.networks.instances import InstanceNet as InstanceNet
from penstock.pipeline.learning.networks.keypoints import KeypointNet as KeypointNet
from penstock.pipeline.learning.networks.multi import MultiNet as MultiNet
from penstock.pipeline.learning.networks.segmentation import Segmenter as Segmenter
from penstock.pipeline.learning.networks.sequences import SequenceCnn as SequenceCnn
from penstock.pipeline.learning.networks.table import TableNet as TableNet
from penstock.pipeline.learning.networks.tokens import TokenModel as TokenModel
