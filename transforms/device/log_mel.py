"""Turn audio into mel spectrograms on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import Ge, Gt

from penstock.core.registry import register
from penstock.core.sample import Batch
from penstock.transforms.device.steps import DeviceStep, Draws, Rows

if TYPE_CHECKING:
    import torch

_FLOOR = 1e-6


@register("batch_transform", "log_mel")
class LogMel(DeviceStep):
    """Turn audio into images: the logarithm of the power in mel bands, over time.

    Each image has mean 0 and standard deviation 1, so loudness does not matter. High frequencies
    are at the top. The mel scale is 2595 log10(1 + f / 700), from O'Shaughnessy, "Speech
    Communication", 1987.

    Args:
        sample_rate: Sample rate of ``audio``, in hertz.
        num_bands: Number of bands, the image's height.
        window_s: Length of the window of a column, in seconds.
        hop_s: Distance between two columns, in seconds.
        channels: Number of equal channels, as image models expect.
    """

    def __init__(
        self,
        *,
        sample_rate: Annotated[int, Ge(1)] = 16_000,
        num_bands: Annotated[int, Ge(1)] = 64,
        window_s: Annotated[float, Gt(0)] = 0.032,
        hop_s: Annotated[float, Gt(0)] = 0.01,
        channels: Annotated[int, Ge(1)] = 3,
    ) -> None:
        self.sample_rate = sample_rate
        self.num_bands = num_bands
        self.channels = channels
        self._window = max(2, round(window_s * sample_rate))
        self._hop = max(1, round(hop_s * sample_rate))
        # Enough frequencies that the lowest band contains one.
        self._num_fft = max(self._window, 1 << (4 * num_bands - 1).bit_length())
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def draw(self, rows: Rows) -> Draws:
        """Draw nothing; set the size of the image."""
        if "audio" in rows.fields:
            rows.size = self.num_bands, 1 + len(rows.fields["audio"][0]) // self._hop
        return {}

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
        window, bands = self._on(audio.device)
        spectrum = torch.stft(
            audio, self._num_fft, self._hop, self._window, window, pad_mode="constant",
            return_complex=True,
        )  # fmt: skip
        power = bands @ (spectrum.real**2 + spectrum.imag**2)
        image = power.clamp(min=_FLOOR).log()
        image = image - image.mean((1, 2), keepdim=True)
        image = image / image.square().mean((1, 2), keepdim=True).sqrt().clamp(min=_FLOOR)
        rest = {name: value for name, value in batch.items() if name != "audio"}
        image = image[:, None].expand(-1, self.channels, -1, -1).contiguous()
        return {**rest, "image": image.numpy() if isinstance(given, np.ndarray) else image}

    def _on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the window, and the weights of frequencies in each band, [num_bands, F]."""
        made = self._constants.get(device)
        if made is None:
            import torch

            highest = self.sample_rate / 2
            frequencies = torch.linspace(0, highest, self._num_fft // 2 + 1)
            top = 2595 * torch.log10(torch.tensor(1 + highest / 700))
            edges = 700 * (10 ** (torch.linspace(0, float(top), self.num_bands + 2) / 2595) - 1)
            rise = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
            fall = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
            bands = torch.minimum(rise, fall).clamp(min=0).flip(0)
            made = torch.hann_window(self._window).to(device), bands.to(device)
            self._constants[device] = made
        return made

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_constants": {}}
