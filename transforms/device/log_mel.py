"""Turn audio into mel spectrograms on the device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.amounts import Positive
from penstock.transforms.device.steps import DeviceStep, Draws, Rows

if TYPE_CHECKING:
    import torch

_FLOOR = 1e-6


@register("batch_transform", "log_mel")
@dataclass(kw_only=True, eq=False)
class LogMel(DeviceStep):
    """Turn audio into images: the logarithm of the power in mel bands, over time.

    Each image has mean 0 and standard deviation 1. High frequencies are at the top.

    Args:
        sample_rate: Sample rate of ``audio``, in hertz.
        num_bands: Number of bands, the image's height.
        window_s: Length of the window of a column, in seconds.
        hop_s: Distance between two columns, in seconds.
        channels: Number of equal channels, as image models expect.
    """

    sample_rate: Annotated[int, Ge(1)] = 16_000
    num_bands: Annotated[int, Ge(1)] = 64
    window_s: Positive = 0.032
    hop_s: Positive = 0.01
    channels: Annotated[int, Ge(1)] = 3

    def draw(self, rows: Rows) -> Draws:
        """Draw nothing; set the size of the image."""
        if "audio" in rows.fields:
            rows.size = self.num_bands, 1 + len(rows.fields["audio"][0]) // self._hop
        return {}

    @property
    def _hop(self) -> int:
        return max(1, round(self.hop_s * self.sample_rate))

    def apply(self, batch: Batch, draws: Draws) -> Batch:
        """Replace ``audio`` float32 [B, T] by ``image`` float32 [B, channels, num_bands, W]."""
        import torch

        given = batch.get("audio")
        audio = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
        if not isinstance(audio, torch.Tensor) or audio.ndim != 2:
            raise ValueError(
                f"log_mel: no audio [B, T] of one length, fields: {', '.join(batch)}; type "
                f"augment=audio with dataset/decode=audio"
            )
        length = max(2, round(self.window_s * self.sample_rate))
        num_fft, window, bands = _on(audio.device, self.sample_rate, self.num_bands, length)
        spectrum = torch.stft(
            audio, num_fft, self._hop, length, window, pad_mode="constant", return_complex=True
        )
        power = bands @ (spectrum.real**2 + spectrum.imag**2)
        image = power.clamp(min=_FLOOR).log()
        image = image - image.mean((1, 2), keepdim=True)
        image = image / image.square().mean((1, 2), keepdim=True).sqrt().clamp(min=_FLOOR)
        rest = {name: value for name, value in batch.items() if name != "audio"}
        image = image[:, None].expand(-1, self.channels, -1, -1).contiguous()
        return {**rest, "image": image.numpy() if isinstance(given, np.ndarray) else image}


@functools.cache
def _on(
    device: torch.device, sample_rate: int, num_bands: int, length: int
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """Return a transform's size, the window [length], and weights of bands, [num_bands, F]."""
    import torch

    # Enough frequencies that the lowest band contains one.
    num_fft = max(length, 1 << (4 * num_bands - 1).bit_length())
    highest = sample_rate / 2
    frequencies = torch.linspace(0, highest, num_fft // 2 + 1)
    # The mel scale is from O'Shaughnessy, "Speech Communication", 1987.
    top = 2595 * torch.log10(torch.tensor(1 + highest / 700))
    edges = 700 * (10 ** (torch.linspace(0, float(top), num_bands + 2) / 2595) - 1)
    rise = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    bands = torch.minimum(rise, fall).clamp(min=0).flip(0)
    return num_fft, torch.hann_window(length).to(device), bands.to(device)
