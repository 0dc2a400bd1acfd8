"""Build reference networks for each task, small enough to train on a laptop."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from penstock.core.sample import Batch, require_pixels
from penstock.core.user_errors import is_trouble


def image_of(batch: Batch) -> torch.Tensor:
    """The batch's images, float [B, 3, H, W]; bytes [B, H, W, 3] are turned into 0..1.

    Raises:
        ValueError: They were not decoded, or there are none.
    """
    if "image" not in batch:
        raise ValueError(
            f"the model takes images, and the batch has {', '.join(sorted(batch))}; take a model "
            f"for these (model=sequence_cnn for tokens, model=table_net for rows of a table)"
        )
    image: torch.Tensor = batch["image"]
    require_pixels(image)
    return image.permute(0, 3, 1, 2).float() / 255 if image.dtype == torch.uint8 else image


_IMAGES = ("x", "input", "inputs", "image", "images", "img", "imgs", "pixel_values")


class FedModule(nn.Module):
    """Calls `module` with ``batch[field]``.

    Args:
        module: Any torch module with one input.
        field: The batch's field that it is called with.
        what: What it is called in messages.
        remedy: What to do where it cannot take its input.
    """

    def __init__(
        self,
        module: nn.Module,
        field: str,
        *,
        what: str = "model.module",
        remedy: str = "correct its arguments, or set model.input",
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"model module: model.module is a {type(module).__name__}, expected a torch "
                f"module; give model.module._target_ (for example torch.nn.Linear)"
            )
        self.module = module
        self.field = field
        self._what = what
        self._remedy = remedy

    def forward(self, batch: Batch) -> Any:
        """Outputs of the module for the batch's field."""
        if self.field not in batch:
            raise ValueError(
                f"model.input is {self.field!r}, the batch has {', '.join(sorted(batch))}; "
                f"set model.input to one of these"
            )
        value = batch[self.field]
        with refusing(self.module, self.field, value, what=self._what, remedy=self._remedy):
            return self.module(value)


_LIBRARIES = ("torch.", "torchvision.", "timm.")


@contextmanager
def refusing(
    module: nn.Module, field: str, value: Any, *, what: str, remedy: str
) -> Iterator[None]:
    """Say in one line that a library's module cannot take what the batch has.

    Args:
        module: What is called inside; the traceback of a user's own is of use, and stays.
        field: The batch's field that it is called with.
        value: The field.
        what: What it is called in messages.
        remedy: What to do then.
    """
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        if not type(module).__module__.startswith(_LIBRARIES) or is_trouble(error):
            raise
        shape = f" {list(value.shape)}" if isinstance(value, torch.Tensor) else ""
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"{what}: {type(module).__name__} cannot take {field!r}{shape}: {said}; {remedy}"
        ) from error


def taking_batches(model: nn.Module) -> nn.Module:
    """Feed a model with the batch's images if its `forward` takes images, by what it calls them."""
    first = next(iter(inspect.signature(model.forward).parameters), "")
    return FedModule(model, "image") if first in _IMAGES else model


class FeaturePyramid(nn.Module):
    """Convolutions down to 1/32 of the size and back to 1/4.

    Source: Lin et al., "Feature Pyramid Networks for Object Detection", CVPR 2017. Group norm, so
    that an image's outputs do not depend on its batch.

    Args:
        width: Channels of the first stage, a multiple of 8.

    Attributes:
        channels: Channels of what comes out.
    """

    stride = 4

    def __init__(self, *, width: int) -> None:
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width, 4 * width, 4 * width]
        self.channels = 4 * width
        self.stages = nn.ModuleList(
            conv_block(inputs, outputs, stride=2) for inputs, outputs in pairwise(sizes)
        )
        self.laterals = nn.ModuleList(nn.Conv2d(c, self.channels, 1) for c in sizes[2:])
        self.mix = conv_block(self.channels, self.channels, stride=1)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Features of an image's places, and of all of it.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            float [B, C, H / 4, W / 4], and the coarsest level, float [B, C, H / 32, W / 32].
        """
        image = image_of(batch)
        levels = []
        for stage in self.stages:
            image = stage(image)
            levels.append(image)
        merged: torch.Tensor | None = None
        for lateral, level in zip(reversed(self.laterals), reversed(levels[1:]), strict=True):
            side = lateral(level)
            if merged is not None:
                side = side + functional.interpolate(merged, size=side.shape[2:], mode="nearest")
            merged = side
        assert merged is not None
        return self.mix(merged), levels[-1]


def conv_block(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    """A convolution, group norm and its activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(outputs // 8, outputs),
        nn.ReLU(inplace=True),
    )


class SmallCnn(nn.Module):
    """Four stages of convolution, group norm and pooling, then the mean over the image.

    Group norm, because its figures come from each image alone: outputs and gradients do not
    depend on how a batch is cut over ranks or accumulated (Wu and He, "Group Normalization",
    ECCV 2018).

    Args:
        num_classes: Number of logits.
        width: Channels of the first stage, a multiple of 8; then 2, 4 and 4 times as many.
        dropout: Share of the pooled features dropped in training.
    """

    def __init__(self, *, num_classes: int, width: int = 24, dropout: float = 0.0) -> None:
        super().__init__()
        channels = [3, width, 2 * width, 4 * width, 4 * width]
        self.stages = nn.Sequential(
            *(
                _stage(inputs, outputs, stride=2 if number == 0 else 1)
                for number, (inputs, outputs) in enumerate(pairwise(channels))
            )
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels[-1], num_classes)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes].

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        image = image_of(batch)
        # A mean in place of adaptive pooling: any size, and its gradient is exact on CUDA too.
        features = self.stages(image).mean(dim=(2, 3))
        return self.head(self.dropout(features))


def _stage(inputs: int, outputs: int, *, stride: int) -> nn.Sequential:
    block = conv_block(inputs, outputs, stride=stride)
    return nn.Sequential(*block, nn.MaxPool2d(2, ceil_mode=True))


class Embedder(nn.Module):
    """The convolutions of `SmallCnn`, then features of length 1; and a classifier of these.

    Args:
        num_classes: Identities to tell apart in training; 0: no classifier.
        width: Channels of the first stage, a multiple of 8.
        features: Numbers in a feature vector.
    """

    def __init__(self, *, num_classes: int, width: int = 24, features: int = 64) -> None:
        super().__init__()
        self.trunk = SmallCnn(num_classes=features, width=width)
        self.classifier = nn.Linear(features, num_classes) if num_classes else None

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Features, and scores of the identities.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            ``features`` float [B, features], each row of Euclidean length 1; with a classifier
            ``logits`` float [B, num_classes].
        """
        pooled = self.trunk(batch)
        outputs = {"features": functional.normalize(pooled.float(), dim=1)}
        if self.classifier is not None:
            outputs["logits"] = self.classifier(pooled)
        return outputs


class Segmenter(nn.Module):
    """Convolutions down to 1/16 of the size and back up, with the finer features beside them.

    Source: Ronneberger, Fischer and Brox, "U-Net", MICCAI 2015. The coarsest features also get
    the mean over the image, so that every pixel knows the scene. Group norm, so that an image's
    outputs do not depend on its batch.

    Args:
        num_classes: Classes of pixels.
        width: Channels at full size, a multiple of 8; then 2, 4, 8 and 8 times as many.
    """

    def __init__(self, *, num_classes: int, width: int = 16) -> None:
        super().__init__()
        channels = [width, 2 * width, 4 * width, 8 * width, 8 * width]
        self.stem = _block(3, width)
        self.down = nn.ModuleList(
            _block(inputs, outputs, stride=2) for inputs, outputs in pairwise(channels)
        )
        self.scene = nn.Linear(channels[-1], channels[-1])
        self.up = nn.ModuleList(
            _block(coarse + fine, fine)
            for coarse, fine in zip(channels[:0:-1], channels[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes, H, W].

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        image = image_of(batch)
        levels = [self.stem(image)]
        for stage in self.down:
            levels.append(stage(levels[-1]))
        features = levels.pop()
        features = features + self.scene(features.mean(dim=(2, 3)))[:, :, None, None]
        for stage in self.up:
            finer = levels.pop()
            grown = functional.interpolate(features, size=finer.shape[2:], mode="nearest")
            features = stage(torch.cat([grown, finer], 1))
        logits: torch.Tensor = self.head(features)
        return logits


def _block(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    first = conv_block(inputs, outputs, stride=stride)
    return nn.Sequential(*first, *conv_block(outputs, outputs, stride=1))


class KeypointNet(nn.Module):
    """A heatmap for each keypoint; the keypoint lies at the heatmap's mean.

    Source of the mean: Sun et al., "Integral Human Pose Regression", ECCV 2018.

    Args:
        num_keypoints: Keypoints of an object.
        width: Channels at full size, a multiple of 8.
    """

    def __init__(self, *, num_keypoints: int, width: int = 16) -> None:
        super().__init__()
        self.maps = Segmenter(num_classes=num_keypoints, width=width)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Heatmaps and what they say.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.

        Returns:
            ``keypoints`` float [B, K, 2], x and y in pixels, and ``heatmaps``, float
            [B, K, H, W], before the softmax over H and W.
        """
        return keypoints_in(self.maps(batch))


def keypoints_in(maps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Keypoints at the means of heatmaps [B, K, H, W], with the maps, as `KeypointNet` gives."""
    maps = maps.float()
    height, width = maps.shape[2:]
    shares = maps.flatten(2).softmax(-1).view_as(maps)
    x = (shares.sum(2) * torch.arange(width, device=maps.device)).sum(-1)
    y = (shares.sum(3) * torch.arange(height, device=maps.device)).sum(-1)
    return {"keypoints": torch.stack([x, y], -1), "heatmaps": maps}


_RARE = 0.01  # share of places that show an object, as it is assumed before training


class BoxDetector(nn.Module):
    """A feature pyramid and a head of boxes.

    Args:
        num_classes: Classes of boxes.
        width: Channels of the first stage, a multiple of 8.
    """

    def __init__(self, *, num_classes: int, width: int = 16) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(width=width)
        self.head = BoxHead(self.pyramid.channels, num_classes, stride=self.pyramid.stride)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Predictions for every place, as `BoxHead` gives them.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        boxes: dict[str, torch.Tensor] = self.head(self.pyramid(batch)[0])
        return boxes


class BoxHead(nn.Module):
    """Each place of a feature map predicts a box.

    It gives a score for every class and the distances to the four edges of its box, as in Tian et
    al., "FCOS: A Simple and Strong Anchor-Free Object Detector", arXiv:2006.09214, on one level.

    Args:
        features: Channels of the map.
        num_classes: Classes of boxes.
        stride: Pixels between two places.
    """

    def __init__(self, features: int, num_classes: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.classes = nn.Sequential(
            conv_block(features, features, stride=1), _head(features, num_classes)
        )
        self.edges = nn.Sequential(conv_block(features, features, stride=1), _head(features, 4))
        nn.init.constant_(self.classes[-1].bias, -math.log((1 - _RARE) / _RARE))  # type: ignore[arg-type]

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        """Predictions for every place.

        Args:
            features: float [B, C, h, w].

        Returns:
            ``logits`` float [B, N, num_classes], ``boxes`` float [B, N, 4], xyxy in pixels,
            ``points`` float [N, 2], where each place lies, and ``stride``, pixels between two
            places, a scalar.
        """
        logits = self.classes(features).flatten(2).transpose(1, 2).float()
        # Distances grow with the square, so that all are positive and small ones are fine.
        reach = functional.softplus(self.edges(features)).square().flatten(2)
        reach = reach.transpose(1, 2).float()
        points = self._points(features)
        boxes = torch.cat(
            [points - reach[..., :2] * self.stride, points + reach[..., 2:] * self.stride], -1
        )
        stride = torch.tensor(float(self.stride), device=points.device)
        return {"logits": logits, "boxes": boxes, "points": points, "stride": stride}

    def _points(self, features: torch.Tensor) -> torch.Tensor:
        height, width = features.shape[2:]
        y = torch.arange(height, device=features.device, dtype=torch.float32)
        x = torch.arange(width, device=features.device, dtype=torch.float32)
        grid = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flip(-1).reshape(-1, 2)
        return (grid + 0.5) * self.stride


def _head(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1)
    nn.init.normal_(layer.weight, std=0.01)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


OF_IMAGES = ("label", "labels", "values")
"""Fields with a number for each class of an image as a whole."""


class MultiNet(nn.Module):
    """A feature pyramid that all tasks share, and the head that each task's field asks for.

    Args:
        heads: By the task's name: its field (``label``, ``labels``, ``values``,
            ``box_labels``, ``keypoints`` or ``mask``) and the number of classes, or of keypoints.
        width: Channels of the first stage, a multiple of 8.
    """

    def __init__(self, heads: Mapping[str, tuple[str, int]], *, width: int = 16) -> None:
        super().__init__()
        self.pyramid = FeaturePyramid(width=width)
        channels, stride = self.pyramid.channels, self.pyramid.stride
        self.fields = {name: field for name, (field, _) in heads.items()}
        # A module may not have every name that a task may, so heads are numbered.
        self.heads = nn.ModuleList()
        for field, count in heads.values():
            if field in OF_IMAGES:
                self.heads.append(nn.Linear(channels, count))
            elif field == "box_labels":
                self.heads.append(BoxHead(channels, count, stride=stride))
            else:
                self.heads.append(_PixelHead(channels, count))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """Outputs for each task, by its name.

        Args:
            batch: ``image`` float [B, 3, H, W]; uint8 [B, H, W, 3] is turned into 0..1 first.
        """
        features, coarsest = self.pyramid(batch)
        image = image_of(batch)
        outputs: dict[str, Any] = {}
        for (name, field), head in zip(self.fields.items(), self.heads, strict=True):
            if field in OF_IMAGES:
                outputs[name] = head(coarsest.mean(dim=(2, 3)))
            elif field == "box_labels":
                outputs[name] = head(features)
            else:
                maps = head(features, image)
                outputs[name] = keypoints_in(maps) if field == "keypoints" else maps
        return outputs


class _PixelHead(nn.Module):
    """Features at the image's size, beside its pixels, to a map for each class."""

    def __init__(self, features: int, maps: int, *, width: int = 16) -> None:
        super().__init__()
        self.narrow = conv_block(features, width, stride=1)
        self.mix = conv_block(width + 3, width, stride=1)
        self.maps = nn.Conv2d(width, maps, 3, padding=1)

    def forward(self, features: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        grown = functional.interpolate(self.narrow(features), size=image.shape[2:], mode="nearest")
        maps: torch.Tensor = self.maps(self.mix(torch.cat([grown, image], 1)))
        return maps


class SequenceCnn(nn.Module):
    """Embedding, two convolutions along the sequence, and the largest value of each channel.

    What a row was filled up with is zero before every convolution and left out of the largest
    value, so outputs do not depend on the length of the batch.

    Args:
        num_classes: Number of logits.
        num_tokens: Tokens are 0 to this less one.
        field: The sequence in the batch.
        num_features: Features of each element; None: the elements are tokens.
        width: Channels.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_tokens: int = 256,
        field: str = "tokens",
        num_features: int | None = None,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.field = field
        self.num_tokens = num_tokens if num_features is None else None
        self.embedding: nn.Module = (
            nn.Embedding(num_tokens, width)
            if num_features is None
            else nn.Linear(num_features, width)
        )
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(2))
        self.head = nn.Linear(width, num_classes)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, float [B, num_classes].

        Args:
            batch: The field, integer [B, T] or float [B, T, features], and ``<field>_mask``,
                bool [B, T].

        Raises:
            ValueError: The batch lacks them, or a token is outside of the vocabulary.
        """
        values, mask = self._inputs(batch)
        hidden = self.embedding(values.long() if self.num_tokens else values.float())
        hidden, there = hidden.transpose(1, 2), mask[:, None]
        for convolution in self.convolutions:
            hidden = torch.relu(convolution(hidden * there))
        # After a ReLU nothing is below 0: that is what an empty sequence has.
        return self.head((hidden * there).amax(dim=2))

    def _inputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        for name in (self.field, f"{self.field}_mask"):
            if name not in batch:
                raise ValueError(
                    f"model sequence_cnn: the batch has no {name!r}, it has "
                    f"{', '.join(sorted(batch))}; use collate=pad, or set model.field"
                )
        values, mask = batch[self.field], batch[f"{self.field}_mask"]
        if values.shape[1] == 0:  # all sequences are empty
            values = values.new_zeros((len(values), 1, *values.shape[2:]))
            mask = mask.new_zeros((len(values), 1))
        if self.num_tokens and values.device.type == "cpu":
            low, high = int(values.min()), int(values.max())
            if low < 0 or high >= self.num_tokens:
                raise ValueError(
                    f"model sequence_cnn: tokens from {low} to {high}, expected 0 to "
                    f"{self.num_tokens - 1}; set model.num_tokens={high + 1}"
                )
        return values, mask


class TableNet(nn.Module):
    """Embedded categories beside the numbers, then residual blocks of two layers.

    Source: the ResNet of Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data",
    NeurIPS 2021, section 3.2; with layer norm, so that a row's outputs do not depend on its
    batch.

    Args:
        num_features: Numbers in a row.
        num_categories: Ids of each category, with 0 for the unknown.
        num_outputs: Classes, or 1 for a number.
        width: Channels.
        depth: Blocks.
        dropout: Share of a block's channels dropped in training.
    """

    def __init__(
        self,
        *,
        num_features: int,
        num_categories: Sequence[int],
        num_outputs: int,
        width: int = 64,
        depth: int = 3,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        sizes = [min(32, 2 + round(1.6 * n**0.5)) for n in num_categories]
        self.embeddings = nn.ModuleList(
            nn.Embedding(n, size) for n, size in zip(num_categories, sizes, strict=True)
        )
        self.first = nn.Linear(num_features + sum(sizes), width)
        self.blocks = nn.ModuleList(_Block(width, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_outputs)

    def forward(self, batch: Batch) -> torch.Tensor:
        """Logits, or the scaled number, float [B, num_outputs].

        Args:
            batch: ``features`` float [B, F] and ``categories`` int64 [B, C].
        """
        categories = batch["categories"]
        parts = [batch["features"]]
        parts += [embed(categories[:, n]) for n, embed in enumerate(self.embeddings)]
        rows = self.first(torch.cat(parts, 1))
        for block in self.blocks:
            rows = block(rows)
        outputs: torch.Tensor = self.head(functional.relu(self.norm(rows)))
        return outputs


class _Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(2 * width, width),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = rows + self.layers(rows)
        return added
