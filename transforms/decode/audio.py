"""Decode audio files: whole, or the excerpt that a crop asks for, mono, at one sample rate."""

from __future__ import annotations

import io
import math
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from penstock.core.contracts import Decoder
from penstock.core.registry import register
from penstock.core.sample import Record, RecordError, Sample

_FIELDS = ("audio", "wav", "flac", "ogg", "opus", "mp3")
_CONTEXT_S = 0.02
"""What is decoded around an excerpt, which the filter of the resampler looks at."""
_LAST_PAGE = 4  # of an Ogg stream, a flag of RFC 3533, section 6
_UNKNOWN_SIZE = (0, 0xFFFFFFFF)  # in WAV files that were written to a pipe


@register("decode", "audio")
class AudioDecoder(Decoder):
    """WAV, FLAC, Ogg and MP3 files: float32 [T], -1 to 1, the mean of the channels.

    Where the augmentation begins with `transform/audio_crop`, the file is sought in, and no more
    is decoded than the excerpt and what the resampler's filter reaches around it.

    Args:
        sample_rate: Samples a second; files of other rates are resampled.
        field: The field of the record with the file; None: ``audio``, or one that is called as
            the format is.
    """

    def __init__(
        self, *, sample_rate: Annotated[int, Ge(1)] = 16_000, field: str | None = None
    ) -> None:
        try:
            import soundfile  # noqa: F401
            import soxr  # noqa: F401
        except ImportError as error:
            raise ValueError(
                f"decode/audio: the package {error.name} is missing (the extra audio); run: pip "
                f"install {error.name}"
            ) from error
        self.sample_rate = sample_rate
        self.field = field

    def __call__(self, record: Record) -> Sample:
        """Decode a record.

        Returns:
            Its fields, with ``audio`` float32 [T] in place of the file; and ``index`` and ``key``.

        Raises:
            RecordError: There is no file, or it is damaged; one line.
        """
        sample = self.defer(record)
        return {**sample, "audio": sample["audio"].whole()}

    def defer(self, record: Record) -> Sample:
        """Read a file's header, and leave the rest to be decoded; as a call, with a `PendingClip`.

        Raises:
            RecordError: There is no file, or its header is damaged.
        """
        names = _FIELDS if self.field is None else (self.field,)
        name = next((name for name in names if name in record.fields), None)
        if name is None:
            raise RecordError(
                f"no field {' or '.join(names[:1])} to decode, fields: "
                f"{', '.join(record.fields) or 'none'}; set dataset.decode.field"
            )
        content = record.fields[name]
        if isinstance(content, dict):  # as the public hubs write it: bytes and path
            content = content.get("bytes")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise RecordError(f"{name!r} is a {type(content).__name__}, expected the file's bytes")
        fields = {key: value for key, value in record.fields.items() if key != name}
        clip = PendingClip(bytes(content), self.sample_rate)
        return {**fields, "audio": clip, "index": record.index, "key": record.key}


class PendingClip:
    """Stand in a sample for audio of which an excerpt is decoded once that is known.

    Attributes:
        rate: The file's samples a second.

    Args:
        content: The file.
        sample_rate: Samples a second that are wanted.

    Raises:
        RecordError: It is no audio file, or is cut short.
    """

    def __init__(self, content: bytes, sample_rate: int) -> None:
        if fault := _cut_short(content):
            raise RecordError(fault)
        self._content = content
        self._wanted_rate = sample_rate
        with self._opened() as file:
            self._frames, self.rate = file.frames, file.samplerate
        if self._frames < 1:
            raise RecordError("the audio file has no samples")

    def __len__(self) -> int:
        """Samples at the rate that is wanted."""
        return max(1, self._frames * self._wanted_rate // self.rate)

    def whole(self) -> NDArray[np.float32]:
        """Decode all of it, float32 [T]."""
        return self.excerpt(0, len(self))

    def excerpt(self, start: int, length: int) -> NDArray[np.float32]:
        """Decode samples `start` to `start + length` - 1, float32 [length].

        Args:
            start: The first one, at the rate that is wanted, as `length` is.
            length: How many; together they lie within the clip.

        Raises:
            RecordError: What had to be decoded is damaged.
        """
        # The places before resampling at which a sample of one rate is one of the other.
        common = math.gcd(self.rate, self._wanted_rate)
        step, wanted_step = self.rate // common, self._wanted_rate // common
        context = math.ceil(self.rate * _CONTEXT_S) if step != wanted_step else 0
        first = max(0, start * step // wanted_step - context) // step * step
        last = min(self._frames, -(-(start + length) * step // wanted_step) + context)
        samples = self._resampled(self._decoded(first, last - first))
        begin = start - first // step * wanted_step
        found = samples[begin : begin + length]
        missing = length - len(found)  # of the last one, by rounding
        return np.pad(found, (0, missing), mode="edge") if missing else found

    def _resampled(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.rate == self._wanted_rate:
            return samples
        import soxr

        changed: NDArray[np.float32] = soxr.resample(samples, self.rate, self._wanted_rate)
        return changed

    def _decoded(self, first: int, count: int) -> NDArray[np.float32]:
        """Decode frames of the file and take the mean of the channels, float32 [count]."""
        try:
            with self._opened() as file:
                file.seek(first)
                frames = file.read(count, dtype="float32", always_2d=True)
        except (RuntimeError, ValueError) as error:  # of libsndfile
            raise RecordError(f"damaged audio: {_line(error)}") from None
        if len(frames) < count:
            raise RecordError(
                f"damaged audio: of {self._frames:,} frames that its header tells, "
                f"{first + len(frames):,} are there"
            )
        mean: NDArray[np.float32] = frames[:, 0] if frames.shape[1] == 1 else frames.mean(1)
        return mean

    def _opened(self) -> Any:
        import soundfile

        try:
            return soundfile.SoundFile(io.BytesIO(self._content))
        except RuntimeError as error:  # its own is one
            raise RecordError(f"no audio file: {_line(error)}") from None


def _line(error: Exception) -> str:
    said = str(error).split(": ", 1)[-1] if "<_io.BytesIO" in str(error) else str(error)
    return " ".join(said.split()).rstrip(".")


def _cut_short(content: bytes) -> str | None:
    """Say that a file ends before its time, where libsndfile would take it for a shorter one."""
    if content[:4] == b"RIFF" and len(content) >= 8:
        told = int.from_bytes(content[4:8], "little")
        if told not in _UNKNOWN_SIZE and told + 8 > len(content) + 1:  # a last odd byte's padding
            return f"cut short: {len(content):,} of {told + 8:,} bytes are there"
    if content[:4] == b"OggS":
        page = content.rfind(b"OggS")
        if len(content) < page + 27 or not content[page + 5] & _LAST_PAGE:
            return f"cut short: an Ogg stream of {len(content):,} bytes without its last page"
    return None
