"""Decode audio, whole or as an excerpt, to mono at one sample rate."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample

_FIELDS = ("audio", "wav", "flac", "ogg", "opus", "mp3")
_CONTEXT_S = 0.02
"""Extra audio on each side of an excerpt, for the resampler's filter."""
_LAST_PAGE = 4  # flag of an Ogg page, RFC 3533, section 6
_UNKNOWN_SIZE = (0, 0xFFFFFFFF)  # in WAV files written to a pipe


@register("decode", "audio")
class AudioDecoder(Decoder):
    """Decode WAV, FLAC, Ogg and MP3 to float32 [T], -1 to 1, the mean of the channels.

    If the augmentation begins with `transform/audio_crop`, only the excerpt is decoded. The file is
    in the field ``audio``, or in one named after its format.

    Args:
        sample_rate: Sample rate in hertz; files at other rates are resampled.
    """

    def __init__(self, *, sample_rate: Annotated[int, Ge(1)] = 16_000) -> None:
        try:
            import soundfile  # noqa: F401
            import soxr  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"decode/audio: the package {error.name} is missing (the extra audio); run: pip "
                f"install {error.name}"
            ) from error
        self.sample_rate = sample_rate

    def __call__(self, record: Record) -> Sample:
        """Replace a record's file by ``audio``, float32 [T]; raise `RecordError` if damaged."""
        sample = self.defer(record)
        return {**sample, "audio": sample["audio"].whole()}

    def defer(self, record: Record) -> Sample:
        """Read only the file's header, and put a `PendingClip` into the sample."""
        name = next((name for name in _FIELDS if name in record.fields), None)
        if name is None:
            raise RecordError(
                f"no field 'audio', fields: {', '.join(record.fields)}; rename one by dataset.keys"
            )
        content = record.fields[name]
        if isinstance(content, dict):  # public hubs write {bytes, path}
            content = content.get("bytes")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise RecordError(f"{name!r} is a {type(content).__name__}, expected the file's bytes")
        fields = {key: value for key, value in record.fields.items() if key != name}
        clip = PendingClip(bytes(content), self.sample_rate)
        return {**fields, "audio": clip, "index": record.index, "key": record.key}


class PendingClip:
    """A stand-in for audio, decoded when its excerpt is known; `rate` is the file's, in hertz."""

    def __init__(self, content: bytes, sample_rate: int) -> None:
        _check_complete(content)
        self._content = content
        self._wanted_rate = sample_rate
        with self._opened() as file:
            self._frames, self.rate = file.frames, file.samplerate
        if self._frames < 1:
            raise RecordError("an audio file with 0 samples")

    def __len__(self) -> int:
        """Return the number of samples at the sample rate of the result."""
        return max(1, self._frames * self._wanted_rate // self.rate)

    def whole(self) -> NDArray[np.float32]:
        """Decode the whole clip, float32 [T]."""
        return self.excerpt(0, len(self))

    def excerpt(self, start: int, length: int) -> NDArray[np.float32]:
        """Decode samples `start` to `start + length` - 1 of the result, float32 [length]."""
        # Start where a sample of the file coincides with a sample of the result.
        common = math.gcd(self.rate, self._wanted_rate)
        step, wanted_step = self.rate // common, self._wanted_rate // common
        context = math.ceil(self.rate * _CONTEXT_S) if step != wanted_step else 0
        first = max(0, start * step // wanted_step - context) // step * step
        last = min(self._frames, -(-(start + length) * step // wanted_step) + context)
        samples = self._decoded(first, last - first)
        if step != wanted_step:
            import soxr

            samples = soxr.resample(samples, self.rate, self._wanted_rate)
        begin = start - first // step * wanted_step
        found = samples[begin : begin + length]
        missing = length - len(found)  # rounding, at the end of the clip
        return np.pad(found, (0, missing), mode="edge") if missing else found

    def _decoded(self, first: int, count: int) -> NDArray[np.float32]:
        """Decode frames of the file and average the channels, float32 [count]."""
        with self._opened() as file:
            file.seek(first)
            frames = file.read(count, dtype="float32", always_2d=True)
        if len(frames) < count:
            raise RecordError(
                f"damaged audio: its header states {self._frames:,} frames, the decoder stopped at "
                f"{first + len(frames):,}"
            )
        mean: NDArray[np.float32] = frames[:, 0] if frames.shape[1] == 1 else frames.mean(1)
        return mean

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import soundfile

        try:
            with soundfile.SoundFile(io.BytesIO(self._content)) as file:
                yield file
        except RuntimeError as error:  # LibsndfileError is a RuntimeError
            said = " ".join(str(error).rsplit(">: ", 1)[-1].split()).rstrip(".")
            raise RecordError(f"damaged audio, or none: {said}") from None


def _check_complete(content: bytes) -> None:
    """Raise `RecordError` for a truncated file, which libsndfile would accept as a shorter one."""
    size = int.from_bytes(content[4:8], "little") + 8
    if content.startswith(b"RIFF") and size - 8 not in _UNKNOWN_SIZE and size > len(content) + 1:
        raise RecordError(f"cut short: {len(content):,} of {size:,} bytes are there")
    page = content.rfind(b"OggS")
    if content.startswith(b"OggS") and not (content[page + 5 : page + 6] or b"\0")[0] & _LAST_PAGE:
        raise RecordError("cut short: an Ogg stream without its last page")
